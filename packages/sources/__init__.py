"""What a package is made from: kernel.toml, a hub kernel's build.toml, or a builder."""
