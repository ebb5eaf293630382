"""Settings: their model, their sources, secrets, and messages about wrong settings."""
