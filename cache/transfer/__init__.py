"""Archives and layers: how entries leave a store and enter another."""
