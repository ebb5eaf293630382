"""Sources whose rows are read once, and stored before the first epoch."""
