"""What builds cost: cold, after an edit, by many processes at once, ahead of time."""
