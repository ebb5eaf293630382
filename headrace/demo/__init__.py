"""The demo: real flights from history to live, killed in the middle, compared row by row at the end."""
