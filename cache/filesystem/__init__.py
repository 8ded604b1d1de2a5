"""Files, locks and the owners of folders."""
