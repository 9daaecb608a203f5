"""Encode weights with error feedback on calibration texts, and search for recipes by measurement."""
