"""Replace generated blocks of a Markdown file, and leave alone what a person wrote.

A block stands between two comments, the first of which has a checksum of what was generated:

    <!-- gguftools: files 1a2b3c4d -->
    …
    <!-- /gguftools: files -->

What stands outside of blocks stays. So does a block that was changed by hand, which its checksum shows.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from quants.errors import FileError

BLOCK = re.compile(
    r"<!-- gguftools: (?P<name>[\w-]+)(?: (?P<crc>[0-9a-f]{8}))? -->\n(?P<text>.*?)\n?<!-- /gguftools: (?P=name) -->",
    re.DOTALL,
)


@dataclass(frozen=True)
class Updated:
    """A text whose blocks are replaced. edited: names of blocks that a person changed, which stay; missing: names of
    blocks that the text does not have.
    """

    text: str
    edited: list[str]
    missing: list[str]


def block(name: str, text: str) -> str:
    """Return a block with its comments."""
    text = text.strip("\n")
    return f"<!-- gguftools: {name} {_crc(text)} -->\n{text}\n<!-- /gguftools: {name} -->"


def updated(old: str, blocks: Mapping[str, str]) -> Updated:
    """Replace the blocks of a text. blocks: name → what is generated today.

    Raises FileError for a text in which a block is there twice, or has no end.
    """
    seen, edited = set[str](), list[str]()

    def replaced(match: re.Match[str]) -> str:
        name, text = match["name"], match["text"]
        if name in seen:
            raise FileError(f"the block {name} is there twice", "remove one of them")
        seen.add(name)
        if match["crc"] and match["crc"] != _crc(text):
            edited.append(name)
            return match[0]
        return block(name, blocks[name]) if name in blocks else match[0]

    new = BLOCK.sub(replaced, old)
    rest = BLOCK.sub("", old)
    if stray := re.search(r"<!-- /?gguftools: ([\w-]+)[^>]*-->", rest):
        raise FileError(f"the block {stray[1]} has no beginning or no end", f"complete or remove {stray[0]}")
    return Updated(new, edited, [name for name in blocks if name not in seen])


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.strip().encode()):08x}"
