"""Makes packages: reads a project, builds its variants, audits them and writes them in the hub's form."""
