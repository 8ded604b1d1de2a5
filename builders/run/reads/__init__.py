"""What compilers list as read, and what sources ask for without reading it."""
