"""Stores: objects that URLs name, read by ranges, written in parts, never copied to this disk."""
