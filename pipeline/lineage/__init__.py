"""Lineage: the source columns of each column, and the filters that can retract rows."""
