"""What JITs of other projects compile, kept as signed pages of entries: `opforge.warmed`."""
