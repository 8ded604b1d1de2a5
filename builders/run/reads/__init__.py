"""The files that compilers list as read, and the questions that sources ask without reading a file."""
