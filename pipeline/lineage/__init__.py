"""Which source columns a column is computed from, and which filters can retract rows."""
