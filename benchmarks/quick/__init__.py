"""Ratios of a few benchmarks in under three minutes, compared with recorded ones."""
