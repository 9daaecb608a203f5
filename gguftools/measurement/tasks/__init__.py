"""Tests of llama-perplexity: their files, which of their tasks are drawn, and what becomes of a task's text."""
