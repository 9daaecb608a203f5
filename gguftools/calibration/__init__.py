"""Encode by what a model does with texts: weights whose errors make up for each other in its products."""
