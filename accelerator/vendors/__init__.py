"""What several accelerators share: device files, drivers, vendor libraries."""
