"""What runs on Spark: session, planner, transforms, the epoch loop, backfill, handoff and stream."""
