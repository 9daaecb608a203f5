"""Windows to measure a divergence on: of texts, or of a stored base; all files must tokenize them alike."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.arguments import PathLike, as_count, thread_count
from quants.errors import OptionError
from quants.spelling import quote

from ..models.model import Model
from .divergence_report import Text
from .text_tokens import tokens_of
from .texts import NamedText, windows_of

if TYPE_CHECKING:
    from runtime.evaluation.divergence import StoredBase
    from runtime.evaluation.windows import Window

    from .bases.base import SavedBase


@dataclass(frozen=True)
class Corpus:
    """The windows of all texts in order, and how many each text has.

    tokens: of all windows, as the texts have them; empty for conversations and for bases of our own format. remarks:
    what was left out of the texts, a line each.
    """

    n_ctx: int
    windows: list["Window"]
    texts: list[Text]
    tokens: list[int]
    remarks: list[str]

    def by_text(self) -> dict[str, list["Window"]]:
        """Return the windows by name of the text."""
        ends = np.cumsum([text.windows for text in self.texts]).tolist()
        return {text.name: self.windows[end - text.windows : end] for text, end in zip(self.texts, ends, strict=True)}

    def spans(self) -> Iterator[tuple[str, slice]]:
        """Yield each text's range of predictions."""
        begin = 0
        for text in self.texts:
            yield text.name, slice(begin, begin + text.scored)
            begin += text.scored


def tokens_in(model: Model) -> list[str]:
    """Return the vocabulary in the order of ids; empty if the file has none."""
    return list(model.metadata.get("tokenizer.ggml.tokens") or ())


def check_vocabulary(model: Model, other: Model) -> None:
    """Raise OptionError if two files have different vocabularies."""
    mine, theirs = tokens_in(model), tokens_in(other)
    if len(mine) != len(theirs):
        sizes = f"{model.path} has a vocabulary of {len(mine)} tokens, {other.path} one of {len(theirs)}"
        raise OptionError(f"{sizes}; they have to be equal")
    for number, (one, two) in enumerate(zip(mine, theirs, strict=True)):
        if one != two:
            what = f"token {number} is {quote(one)} in {model.path} and {quote(two)} in {other.path}"
            raise OptionError(f"{what}; their vocabularies have to be equal")


def check_tokens(model: Model, other: Model, texts: Iterable[PathLike]) -> None:
    """Raise OptionError if keys of the tokenizers differ, and the tokens of a text, too."""
    keys = {key for each in (model, other) for key in each.metadata if key.startswith("tokenizer.")}
    keys = {key for key in keys if not key.startswith("tokenizer.chat_template")}
    if all(_plain(model.metadata.get(key)) == _plain(other.metadata.get(key)) for key in keys):
        return
    for text in texts:
        if tokens_of(model, text) != tokens_of(other, text):
            both = f"{model.path} and {other.path} make different tokens of {text}"
            raise OptionError(f"{both}; their vocabularies have to be equal")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else list(value)


def stored_base(
    path: Path, base_model: PathLike | Model | None, others: Sequence[Model], chunks: int | None, threads: int | None
) -> "StoredBase | SavedBase | None":
    """Return a stored base; one of our own format on its first `chunks` windows of each text.

    Returns None if the file is none; `opened` then reports what is wrong.
    """
    from .bases.base import is_base
    from .bases.llama_cpp import is_llama_cpp_base, open_llama_cpp_base
    from .bases.reading import open_base

    if is_base(path):
        saved = open_base(path, base_model=base_model, others=others, threads=thread_count(threads))
        return saved.first(chunks)
    if base_model is not None:
        raise OptionError(
            f"{path} is not a base in gguftools' format: it needs no output matrix", "leave base_model out"
        )
    return open_llama_cpp_base(path) if is_llama_cpp_base(path) else None


def read_corpus(
    model: Model,
    texts: Sequence[NamedText],
    n_ctx: int | None,
    chunks: int | None,
    stored: "StoredBase | SavedBase | None",
) -> Corpus:
    """Return the windows of texts, or of a stored base, which must be of `texts` if these are given.

    Raises FileError, VocabularyError, and OptionError for a text that is too short and for a base of other texts or
    windows.
    """
    from .bases.base import SavedBase

    if isinstance(stored, SavedBase):
        return _read_saved(model, texts, n_ctx, stored)
    if stored is not None:
        return _read_stored(model, texts, n_ctx, chunks, stored)
    width = 512 if n_ctx is None else n_ctx
    read = [windows_of(model, text, width, chunks=chunks) for text in texts]
    windows = [window for text in read for window in text.windows]
    tokens = [  # as the texts have them, without what begins each window
        token
        for text in read
        for window in text.windows
        for token in text.tokens[window.start : window.start + len(window.inputs)]
    ]
    descriptions = [Text(each.text.name, str(each.text.path), len(each.windows), each.scored) for each in read]
    return Corpus(width, windows, descriptions, tokens, [remark for each in read for remark in each.remarks])


def _read_stored(
    model: Model, texts: Sequence[NamedText], n_ctx: int | None, chunks: int | None, stored: "StoredBase"
) -> Corpus:
    from runtime.evaluation.windows import Window

    if n_ctx not in (None, stored.n_ctx):
        raise OptionError(f"the base was stored with windows of {stored.n_ctx} tokens, not {n_ctx}")
    if len(texts) > 1 or any(text.chat for text in texts):
        raise OptionError("a stored base has one plain text", "name that, or none")
    size = len(tokens_in(model))
    if size != stored.vocabulary:
        sizes = f"the base has a vocabulary of {stored.vocabulary} tokens, {model.path} one of {size}"
        raise OptionError(f"{sizes}; they have to be equal")
    tokenizer, width = model.tokenizer, stored.n_ctx
    count = len(stored.tokens) // width
    for text in texts:
        ids, _ = tokens_of(model, text.path)
        if ids[: len(stored.tokens)] != stored.tokens.tolist():
            hint = "leave -f out to take the text that is stored"
            raise OptionError(f"the base was stored of another text than {text.path}", hint)
    if chunks is not None:
        count = min(count, as_count(chunks, "chunks", 1))
    tokens = stored.tokens[: count * width]
    scored = np.arange(width // 2, width - 1)
    windows = []
    for start in range(0, len(tokens), width):
        inputs = tokens[start : start + width].copy()
        if tokenizer.add_bos and tokenizer.bos is not None:
            inputs[0] = tokenizer.bos
        windows.append(Window(inputs, scored, tokens[start + scored + 1], start))
    name, path = (texts[0].name, str(texts[0].path)) if texts else ("text", None)
    return Corpus(width, windows, [Text(name, path, count, count * len(scored))], tokens.tolist(), [])


def _read_saved(model: Model, texts: Sequence[NamedText], n_ctx: int | None, base: "SavedBase") -> Corpus:
    from .bases.base import vocabulary_digest

    if n_ctx not in (None, base.n_ctx):
        raise OptionError(f"the base was saved with windows of {base.n_ctx} tokens, not {n_ctx}")
    if vocabulary_digest(model.metadata) != base.vocabulary_digest:
        raise OptionError(f"{base.path} is of another vocabulary than {model.path}; they have to be equal")
    if texts and len(texts) != len(base.texts):
        problem = f"{base.path} was made on other texts: {', '.join(base.texts)}"
        raise OptionError(problem, "leave -f out to take the texts that are in it")
    given: Sequence[NamedText | None] = texts or [None] * len(base.texts)
    descriptions = []
    for (name, windows), text in zip(base.texts.items(), given, strict=True):
        if text is not None:
            own_windows = windows_of(model, text, base.n_ctx).windows
            if len(own_windows) < len(windows) or any(
                not np.array_equal(mine.inputs, its.inputs) or not np.array_equal(mine.scored, its.scored)
                for mine, its in zip(own_windows, windows, strict=False)
            ):
                hint = "leave -f out to take the text that is in it"
                raise OptionError(f"{base.path} was made on another text than {text.path}", hint)
        path = None if text is None else str(text.path)
        descriptions.append(
            Text(text.name if text else name, path, len(windows), sum(len(each.scored) for each in windows))
        )
    return Corpus(base.n_ctx, base.windows, descriptions, [], [])
