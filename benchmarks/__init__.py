"""Headrace beside the best bare way to do the same, in one run."""
