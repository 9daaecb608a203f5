"""Perplexity of a single text."""

from runtime.evaluation.perplexity import Perplexity, perplexities, windows


def perplexity(tokens, forward, n_ctx, *, chunks=None, stride=0, **options) -> Perplexity:
    plan = windows(len(tokens), n_ctx, chunks=chunks, stride=stride)
    return perplexities([tokens], forward, [plan], **options)[0]
