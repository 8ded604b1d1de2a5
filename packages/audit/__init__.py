"""What a package must be before it is shipped: checks of its library and of its Python."""
