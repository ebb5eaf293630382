"""Eyes on a run while it works: metrics, rows on their way, and the HTTP endpoint that shows both. Off unless settings ask for it."""
