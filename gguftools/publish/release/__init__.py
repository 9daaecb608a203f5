"""Make a folder to publish from a checkpoint: all files, measured, described and checked."""
