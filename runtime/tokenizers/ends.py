"""Which tokens end a generated text: those that keys name, and those that are called so (`archs.vocab.named`)."""

from archs.vocab.listed import TokenList


def end_ids(tokens: TokenList) -> tuple[int, ...]:
    """Tokens that end a text, in order."""
    return tuple(sorted(tokens.named.ends))
