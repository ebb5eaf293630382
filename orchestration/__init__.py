"""Dagster: the pipeline component, assets, asset checks, sensors and schedules. The only room that imports dagster."""
