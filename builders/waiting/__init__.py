"""The output of a build that a program waits for."""
