"""New projects of ops and accelerators: `opforge new`."""
