"""The commands about remotes: `opforge remote`, `key`, `fetch` and `mirror`."""
