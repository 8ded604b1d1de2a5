"""What file systems do that files on others do not show."""
