"""Outside systems, one module or package each, its source and its sink side by side."""
