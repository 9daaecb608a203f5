"""Running a model to measure it."""
