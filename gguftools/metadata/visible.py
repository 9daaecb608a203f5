"""Text that a stranger wrote, made safe to show. Imports nothing: every start of the command line needs it."""

import re

# What terminals obey, what turns text around, and what nobody sees: control characters (C0, DEL, C1), formats of bidi
# and zero width, separators of lines and paragraphs, tags; and halves of characters, which cannot be written.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: str, keep: str = "") -> str:
    """Make a text of a file safe on a terminal: invisible and control characters become escapes such as \\x1b.

    keep: characters that stay as they are.
    """
    if text.isprintable():  # for which all of UNSEEN is not, and which is found out faster
        return text
    return UNSEEN.sub(lambda match: match[0] if match[0] in keep else escape(match[0]), text)


def escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
