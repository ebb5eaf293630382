"""The `http` source: pages of a JSON API."""
