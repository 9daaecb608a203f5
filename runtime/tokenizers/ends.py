"""Which tokens end a generated text: those that keys name or list, and those with such names (`archs.vocab.named`)."""

from archs.vocab.ends import listed_ends
from archs.vocab.listed import TokenList


def end_ids(tokens: TokenList) -> tuple[int, ...]:
    """Return tokens that end a text, in order."""
    return tuple(sorted(tokens.named.ends.union(listed_ends(tokens.metadata))))
