"""Encoder families, one module each, which `archs.plans.mmproj` discovers."""
