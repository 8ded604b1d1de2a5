"""The sources of a package: kernel.toml, a hub kernel's build.toml, or a builder."""
