"""Settings: their model, the places that they are read from, secrets, and messages about wrong ones."""
