"""Calls of HTTP services: the client of the handler transform and of the webhook sink."""
