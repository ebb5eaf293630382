"""The checks that a pipeline file declares for its sinks."""
