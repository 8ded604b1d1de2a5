"""Keeps code that JITs of other projects compile, as signed pages of entries: `opforge.warm`."""
