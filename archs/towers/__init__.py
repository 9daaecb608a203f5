"""Families of towers, one file each; `archs.tower_plan` finds them by where they are."""
