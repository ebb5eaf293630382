"""The redis sink: one entry per key in Redis or Valkey, exactly once by scripts of the server."""
