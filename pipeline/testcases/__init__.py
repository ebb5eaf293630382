"""Tests of pipeline files: loading, filtering, their rows and values."""
