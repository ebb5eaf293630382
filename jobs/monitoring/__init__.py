"""Monitoring of a run: metrics, sampled rows, and the HTTP endpoint for both. Off by default."""
