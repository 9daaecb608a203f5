"""Inspect a file and check whether it is sound: show, diff, validate, audit, hash; and the memory it needs: fit."""
