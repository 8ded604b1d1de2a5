"""Exported programs with the ops that they need: `opforge.save_program` and `opforge.load_program`."""
