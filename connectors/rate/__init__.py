"""The `rate` source: numbered rows for trials."""
