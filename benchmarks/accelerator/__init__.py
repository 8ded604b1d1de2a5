"""What the methods of an accelerator cost."""
