"""A run of a pipeline: the loop over epochs, events, repair, and status."""
