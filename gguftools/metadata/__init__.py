"""Typed key-value pairs: what keys mean, how values are made, edited, compared and shown."""
