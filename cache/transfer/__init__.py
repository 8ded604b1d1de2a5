"""Archives and layers: how entries leave one store and enter another."""
