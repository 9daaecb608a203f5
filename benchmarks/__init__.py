"""Measurements beside the reference, in one run. None is a test."""
