"""Fetch models from the Hugging Face hub, and upload what is published to it."""
