"""Keys and settings of Streamling's files that have another form here, or none."""
