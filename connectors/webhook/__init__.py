"""The webhook sink: changes as HTTP requests, at least once with idempotency keys."""
