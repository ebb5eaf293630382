"""The handler transform: Spark tasks send rows to a service over HTTP and continue with its responses."""
