"""Families of encoders, one file each; `archs.plans.mmproj` finds them by where they are."""
