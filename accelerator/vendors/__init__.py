"""Code that several accelerators share: device files, drivers and vendor libraries."""
