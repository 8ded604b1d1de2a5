"""What a program notices of a build that it waits for."""
