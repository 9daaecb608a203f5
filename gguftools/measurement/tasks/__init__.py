"""Benchmarks of llama-perplexity: their files, the tasks that are drawn, and the texts of a task."""
