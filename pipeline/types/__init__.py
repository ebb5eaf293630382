"""Column types, 256-bit integers, and durations."""
