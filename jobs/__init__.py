"""The part that runs on Spark: session, planner, transforms, and the loop over epochs."""
