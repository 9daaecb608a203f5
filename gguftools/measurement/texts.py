"""Named texts to measure on, so that figures are reported for each of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike, as_path, as_texts, wrong
from quants.errors import OptionError

from ..models.model import Model
from .text_tokens import tokens_of

if TYPE_CHECKING:
    from runtime.evaluation.windows import Window

DEFAULT = "default_texts"  # the folder beside this file


@dataclass(frozen=True)
class NamedText:
    """A UTF-8 file and its name. chat: it has conversations, one line of JSON each."""

    name: str
    path: Path
    chat: bool = False


Texts = PathLike | NamedText | Sequence[PathLike | NamedText] | Mapping[str, PathLike]


@dataclass(frozen=True)
class TextWindows:
    """A text as one model reads it.

    tokens: all of a plain text, none of conversations; bos: the token that begins each window, None if the vocabulary
    has none. remarks: lines for the user on what was left out.
    """

    text: NamedText
    windows: list["Window"]
    tokens: list[int] = field(default_factory=list)
    bos: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def scored(self) -> int:
        """Return the number of scored predictions."""
        return sum(len(window.scored) for window in self.windows)


def named_texts(given: str | Iterable[str], chat: bool = False) -> list[NamedText]:
    """Return texts given as `NAME=PATH`, or as `PATH`, which is named after its file without the suffix.

    A path with an equals sign is a path if such a file exists. chat: they are conversations. Raises OptionError for
    duplicate names (`check_names`) or empty ones.
    """
    texts = [_named(text, chat) for text in as_texts(given, "the texts")]
    check_names(texts)
    return texts


def _named(given: str, chat: bool) -> NamedText:
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return NamedText(Path(given).stem, Path(given), chat)
    if not (name.strip() and path):
        raise OptionError(f"{given!r} names no text; NAME=PATH or PATH is expected")
    return NamedText(name.strip(), Path(path), chat)


def texts_named(given: Texts, chat: bool = False) -> list[NamedText]:
    """Return the texts given to a function. Raises OptionError for invalid values and duplicate names."""
    if isinstance(given, Mapping):
        return [NamedText(str(name), as_path(path, "the text"), chat) for name, path in given.items()]
    several: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    texts = [
        each if isinstance(each, NamedText) else named_texts([str(as_path(each, "the text"))], chat)[0]
        for each in several
    ]
    check_names(texts)
    return texts


def check_names(texts: Iterable[NamedText]) -> None:
    """Raise OptionError for texts of the same name, whose figures could not be told apart."""
    for name, count in Counter(text.name for text in texts).items():
        if count > 1:
            raise OptionError(f"{count} texts are called {name!r}", "give them names of their own: NAME=PATH")


def default_texts() -> list[NamedText]:
    """Return the texts of this package, for measuring without a file (see the README in their folder)."""
    folder = Path(str(files(__package__) / DEFAULT))
    return [NamedText(path.stem, path) for path in sorted(folder.glob("*.txt"))]


def windows_of(
    model: Model, text: NamedText, n_ctx: int = 512, *, chunks: int | None = None, stride: int = 0
) -> TextWindows:
    """Cut a text into windows for a model: plain text as `perplexity` does; each conversation is a window whose answers
    are scored.

    n_ctx: tokens of a window. chunks: number of windows, None for all. stride: > 0 for overlapping windows of a plain
    text. Raises FileError, VocabularyError, and OptionError for a text that is too short or has no conversations.
    """
    from runtime.evaluation.windows import text_windows

    if not isinstance(text, NamedText):
        raise wrong("the text", text, "one of named_texts()")
    if text.chat:
        from .conversations import conversation_windows

        windows, remarks = conversation_windows(model, text.path, n_ctx, chunks)
        return TextWindows(text, windows, remarks=remarks)
    tokens, bos = tokens_of(model, text.path)
    try:
        return TextWindows(text, text_windows(tokens, n_ctx, bos=bos, chunks=chunks, stride=stride), tokens, bos)
    except OptionError as error:
        raise OptionError(f"{text.name}: {error}", error.hint) from error
