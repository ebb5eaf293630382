"""From a pipeline file to Spark frames: the planner, load paths, and SQL that a source executes itself."""
