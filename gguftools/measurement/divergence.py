"""How far files' predictions on texts are from those of a base, usually the model they were quantized from."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.arguments import PathLike, as_path, thread_count
from quants.errors import FileError, OptionError, VocabularyError
from quants.spelling import quote

from ..files.atomic import NOTHING, Reads, atomic_output, check_space, check_target, output_path
from ..model import Model, opened
from .perplexity import Progress, tokens_at_once, tokens_of
from .record import Record, recorded
from .texts import NamedText, check_names, default_texts, named_texts, windows_of

if TYPE_CHECKING:
    from runtime.divergence import Base, Predictions, Rows, RunningLogits, Save, StoredBase
    from runtime.tokenizer import Tokenizer
    from runtime.windows import Window

    from .bases import BaseWriter, SavedBase

Texts = PathLike | NamedText | Sequence[PathLike | NamedText] | Mapping[str, PathLike]
WORST = 20
OWN_FORM = ".gguf"  # how names of bases of our own end
BEFORE, AROUND = 60, 20  # characters in front of a token, tokens on either side of it
SPLITTING = (  # of keys tokenizer.ggml.…: beside the tokens, what decides how a text becomes them
    "model", "pre", "merges", "scores", "token_type", "add_bos_token", "bos_token_id", "add_space_prefix",
)  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A text that was measured on. file: None where a stored base alone has it."""

    name: str
    file: str | None
    windows: int
    scored: int


@dataclass(frozen=True)
class FileDivergence:
    """One file beside the base. figures: all of them over all texts; texts: the same of each text alone.

    chunks: the mean KL divergence after each window. Everything is plain data, named as `as_dict` has it.
    """

    path: str
    size: int
    bits_per_weight: float
    type: str
    figures: Mapping[str, Any]
    lower_bound: bool
    texts: Mapping[str, Mapping[str, Any]]
    positions: Mapping[str, list[float]]
    histogram: Mapping[str, list[float]]
    chunks: list[float]
    worst: list[dict[str, Any]]

    @property
    def kl_divergence(self) -> Mapping[str, float]:
        """KL(base ‖ file) in nats: mean, standard_error, max, p99.9 … p0.1, median, min."""
        return self.figures["kl_divergence"]  # type: ignore[no-any-return]

    def as_dict(self) -> dict[str, Any]:
        own = {"path": self.path, "size": self.size, "bits_per_weight": self.bits_per_weight, "type": self.type}
        rest = ("lower_bound", "texts", "positions", "histogram", "chunks", "worst")
        return own | dict(self.figures) | {name: getattr(self, name) for name in rest}


@dataclass(frozen=True)
class DivergenceReport:
    """What was measured: files beside a base. precision, products: as `perplexity` says them."""

    base: str
    n_ctx: int
    precision: str
    products: str
    texts: list[Text]
    base_perplexity: float
    base_perplexity_error: float
    base_entropy: float
    files: list[FileDivergence]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **{name: value for name, value in vars(self).items() if name not in ("texts", "files")},
            "texts": [vars(text) for text in self.texts], "files": [file.as_dict() for file in self.files],
        }  # fmt: skip


@dataclass(frozen=True)
class _Reading:
    """What is read: windows of texts one after the other, and how many each text has."""

    windows: list["Window"]
    texts: list[Text]
    tokens: list[int]  # of all windows, as the texts have them; none of conversations
    remarks: list[str]

    def by_text(self) -> dict[str, list["Window"]]:
        ends = np.cumsum([text.windows for text in self.texts]).tolist()
        return {text.name: self.windows[end - text.windows : end] for text, end in zip(self.texts, ends, strict=True)}

    def spans(self) -> Iterator[tuple[str, slice]]:
        """Each text's predictions."""
        begin = 0
        for text in self.texts:
            yield text.name, slice(begin, begin + text.scored)
            begin += text.scored


def divergence(
    base: PathLike | Model, *others: PathLike | Model,
    text: Texts | None = None, chat: bool = False, n_ctx: int | None = None, chunks: int | None = None,
    threads: int | None = None, round_activations: bool = False, precision: str = "float32",
    save_base: PathLike | None = None, top_k: int | None = None, with_output: bool = False,
    base_model: PathLike | Model | None = None, record: PathLike | None = None, overwrite: bool = False,
    progress: Progress | None = None,
) -> DivergenceReport:  # fmt: skip
    """KL divergence of files' predictions from a base's, in nats, with all that llama-perplexity says of it and more.

    base: a model, or a base that llama-perplexity or save_base wrote, whose texts and windows are taken; base_model:
    what has the output matrix of a base of our own, where it is not found. others: what is compared with it; none where
    the base is only saved. text: one, several, or several by name, each of which gets its own figures, too; None for
    those that come with this package. chat: texts are conversations, JSONL, whose answers alone are scored.
    n_ctx: tokens of a window, 512 if not given; chunks: of how many windows of each text, None for all; as in
    `perplexity`. threads: None for all processors. precision, round_activations: as in `perplexity`. save_base: write
    the base's predictions there: as our own small base where the name ends in .gguf (see `bases`; top_k: its likeliest
    tokens alone; with_output: and the output matrix), else in llama.cpp's form; overwrite: replace a file that is
    there. record: note each window's figures in
    this file, and go on from it (with a base of our own, too) where an earlier run was killed; it goes in the end.
    progress: called after each window with (windows done, windows in all, mean divergence of the first file so far).
    Raises FileError, ModelError, VocabularyError, and OptionError for too short a text, for files whose vocabularies
    differ from the base's and for a stored base of another text or window.
    """
    from runtime.divergence import RunningLogits
    from runtime.divergence import divergence as measure
    from runtime.head import output_of
    from runtime.model import Model as RunningModel
    from runtime.precision import Precision, precision_named, products

    from .bases import Run, SavedBase, saved_base, vocabulary_digest

    chosen: Precision = "reference" if round_activations else precision_named(precision)
    _check_form(save_base, top_k, with_output, record)
    files = [opened(each) for each in others]
    stored = None if isinstance(base, Model) else _stored(as_path(base, "the base"), base_model, files, threads)
    if not others and (stored is not None or save_base is None):
        raise OptionError("there is nothing to compare with the base", "name one file or more behind it")
    own_form = save_base is not None and Path(save_base).suffix == OWN_FORM
    if save_base is not None and (isinstance(stored, SavedBase) or (stored is not None and own_form)):
        raise OptionError(f"{base} is a saved base already", "name the model that it is of to save another")
    source = None if stored is not None else opened(base)
    model = files[0] if source is None else source
    for file in files:
        _check_vocabulary(model, file)
    if chat and text is None:
        raise OptionError("there are no conversations of ours: chat needs a text", "name a JSONL file (-f)")
    texts = [] if text is None else _named(text, chat)
    if stored is None and not texts:
        texts = default_texts()
    if isinstance(stored, SavedBase):
        stored = stored.first(chunks)
    reading = _read(model, texts, n_ctx, chunks, stored)
    for file in files:
        _check_tokens(model, file, [each.path for each in texts if not each.chat])
    width = stored.n_ctx if stored is not None else n_ctx or 512

    def running(file: Model) -> RunningLogits:
        net = RunningModel(file.metadata, file.tensors, threads=threads, precision=chosen)
        return RunningLogits(net.lazy_logits, reading.windows, tokens_at_once(file), output_of(net.network))

    names = _names(files)
    models = dict(zip(names, map(running, files), strict=True))
    from_: Base = running(source) if source is not None else stored  # type: ignore[assignment]
    with ExitStack() as stack:
        save = writer = kept = None
        read = [path for file in (model, *files) for path in file.files]
        reads = NOTHING.also(read).also(each.path for each in texts)
        if stored is not None:
            read.append(Path(str(base)))
            reads = reads.also([Path(str(base))])
        if record is not None:
            noted = (as_path(record, "the record"), reading, read, len(files), reads, chosen, width)
            kept = stack.enter_context(_record(*noted))
        if save_base is not None:
            target = output_path(save_base)
            if target.suffix == OWN_FORM and isinstance(from_, RunningLogits):
                run = Run(reading.by_text(), width, _absolute(model), vocabulary_digest(model.metadata), chosen,
                          from_.output)  # fmt: skip
                writer = stack.enter_context(saved_base(
                    target, run, sources=read, top_k=top_k, with_output=with_output, resume=kept is not None,
                    overwrite=overwrite, reads=reads,
                ))  # fmt: skip
                save = _adding(writer, from_)
            else:
                save = stack.enter_context(_saving(target, model, reading, width, reads, overwrite, threads))
        found = measure(
            reading.windows, from_, models, progress=progress, save=save, threads=thread_count(threads),
            kept=kept if kept is None or writer is None else Both(kept, writer),
        )  # fmt: skip
    from runtime.divergence import ENTROPY, LOG_P
    from runtime.statistics import mean_and_error, perplexity

    loss, error = mean_and_error(-found.base[:, LOG_P])
    targets = np.concatenate([window.targets for window in reading.windows])
    return DivergenceReport(
        str(base.path if isinstance(base, Model) else base), width, chosen, products(chosen), reading.texts,
        perplexity(loss), perplexity(loss) * error, float(found.base[:, ENTROPY].mean()),
        [_figures(name, file, reading, found, targets, model.tokenizer, from_.lower_bound)
         for name, file in zip(names, files, strict=True)], reading.remarks,
    )  # fmt: skip


def _check_form(save_base: PathLike | None, top_k: int | None, with_output: bool, record: PathLike | None) -> None:
    """Raise OptionError for what a base is not saved with."""
    own = save_base is not None and Path(save_base).suffix == OWN_FORM
    if (top_k is not None or with_output) and not own:
        what = "top_k" if top_k is not None else "with_output"
        raise OptionError(f"{what} is of bases of our own", f"save one: a name that ends in {OWN_FORM}")
    if record is not None and save_base is not None and not own:
        raise OptionError("a base in llama.cpp's form is written in one go: there is no going on from a record",
                          f"save one of our own: a name that ends in {OWN_FORM}")  # fmt: skip


def _absolute(model: Model) -> str:
    return str(model.path.absolute()) if model.files else str(model.path)


def _adding(writer: "BaseWriter", base: "RunningLogits") -> "Save":
    """What hands a base's predictions to the writer, in the form that it takes."""

    def save(window: int, start: int, stop: int, rows: "Rows") -> None:
        writer.add(window, start, stop, rows if writer.needs_rows else base.states(window, start, stop))

    return save


@dataclass(frozen=True)
class Both:
    """A record beside a base that is written: done is what both have."""

    record: Record
    writer: "BaseWriter"

    def earlier(self, window: int) -> Any:
        return self.record.earlier(window) if self.writer.covered(window) else None

    def note(self, window: int, values: Any) -> None:
        self.record.note(window, values)


@contextmanager
def _record(
    path: Path, reading: _Reading, read: Sequence[Path], files: int, reads: Reads, precision: str, n_ctx: int
) -> Iterator[Record]:  # fmt: skip
    from runtime.divergence import columns

    from .bases import text_digest

    plan = {"n_ctx": n_ctx, "precision": precision, "text": text_digest(reading.windows)}
    sizes = [len(window.scored) for window in reading.windows]
    with recorded(path, plan, read, sizes, columns(files), reads) as record:
        yield record


def _stored(
    path: Path, base_model: PathLike | Model | None, others: Sequence[Model], threads: int | None
) -> "StoredBase | SavedBase | None":
    """A base that an earlier run kept, if the file is one. Raises FileError for a damaged one."""
    from runtime.stored_logits import MAGIC, stored_logits

    from .bases import is_base, open_base

    if is_base(path):
        return open_base(path, base_model=base_model, others=others, threads=thread_count(threads))
    if base_model is not None:
        raise OptionError(f"{path} is no base of our own: it needs no output matrix", "leave base_model out")

    try:
        if path.is_dir() or not path.exists():
            return None  # `opened` says what is wrong with it
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
        return stored_logits(np.memmap(path, np.uint8, "r"))
    except FileError as error:
        raise FileError(f"{path}: {error}", error.hint) from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def _check_vocabulary(model: Model, other: Model) -> None:
    """Raise OptionError where two files would not make the same tokens of a text."""
    mine, theirs = (list(each.metadata.get("tokenizer.ggml.tokens") or ()) for each in (model, other))
    if len(mine) != len(theirs):
        sizes = f"{model.path} has a vocabulary of {len(mine)} tokens, {other.path} one of {len(theirs)}"
        raise OptionError(f"{sizes}; they have to be equal")
    for number, (one, two) in enumerate(zip(mine, theirs, strict=True)):
        if one != two:
            what = f"token {number} is {quote(one)} in {model.path} and {quote(two)} in {other.path}"
            raise OptionError(f"{what}; their vocabularies have to be equal")


def _check_tokens(model: Model, other: Model, texts: Iterable[PathLike]) -> None:
    """Raise OptionError where keys of the tokenizers differ, and with them the tokens of a text."""
    keys = [f"tokenizer.ggml.{name}" for name in SPLITTING]
    if all(_plain(model.metadata.get(key)) == _plain(other.metadata.get(key)) for key in keys):
        return
    for text in texts:
        if tokens_of(model, text) != tokens_of(other, text):
            both = f"{model.path} and {other.path} make different tokens of {text}"
            raise OptionError(f"{both}; their vocabularies have to be equal")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else list(value)


def _read(
    model: Model, texts: Sequence[NamedText], n_ctx: int | None, chunks: int | None,
    stored: "StoredBase | SavedBase | None",
) -> _Reading:  # fmt: skip
    from .bases import SavedBase

    if isinstance(stored, SavedBase):
        return _read_saved(model, texts, n_ctx, stored)
    if stored is not None:
        return _read_stored(model, texts, n_ctx, chunks, stored)
    read = [windows_of(model, text, n_ctx or 512, chunks=chunks) for text in texts]
    windows = [window for text in read for window in text.windows]
    tokens = [  # as the texts have them, without what begins each window
        token
        for text in read
        for window in text.windows
        for token in text.tokens[window.start : window.start + len(window.inputs)]
    ]
    said = [Text(each.text.name, str(each.text.path), len(each.windows), each.scored) for each in read]
    return _Reading(windows, said, tokens, [remark for each in read for remark in each.remarks])


def _read_stored(
    model: Model, texts: Sequence[NamedText], n_ctx: int | None, chunks: int | None, stored: "StoredBase"
) -> _Reading:  # fmt: skip
    from runtime.windows import Window

    if n_ctx not in (None, stored.n_ctx):
        raise OptionError(f"the base was stored with windows of {stored.n_ctx} tokens, not {n_ctx}")
    if len(texts) > 1 or any(text.chat for text in texts):
        raise OptionError("a stored base has one plain text", "name that, or none")
    size = len(model.metadata.get("tokenizer.ggml.tokens") or ())
    if size != stored.vocabulary:
        sizes = f"the base has a vocabulary of {stored.vocabulary} tokens, {model.path} one of {size}"
        raise OptionError(f"{sizes}; they have to be equal")
    tokenizer, width = model.tokenizer, stored.n_ctx
    count = len(stored.tokens) // width
    for text in texts:
        found, _ = tokens_of(model, text.path)
        if found[: len(stored.tokens)] != stored.tokens.tolist():
            hint = "leave -f out to take the text that is stored"
            raise OptionError(f"the base was stored of another text than {text.path}", hint)
    if chunks is not None:
        count = min(count, chunks)
    tokens = stored.tokens[: count * width]
    scored = np.arange(width // 2, width - 1)
    windows = []
    for start in range(0, len(tokens), width):
        inputs = tokens[start : start + width].copy()
        if tokenizer.add_bos and tokenizer.bos is not None:
            inputs[0] = tokenizer.bos
        windows.append(Window(inputs, scored, tokens[start + scored + 1], start))
    name, path = (texts[0].name, str(texts[0].path)) if texts else ("text", None)
    return _Reading(windows, [Text(name, path, count, count * len(scored))], tokens.tolist(), [])


def _read_saved(model: Model, texts: Sequence[NamedText], n_ctx: int | None, base: "SavedBase") -> _Reading:
    from .bases import vocabulary_digest

    if n_ctx not in (None, base.n_ctx):
        raise OptionError(f"the base was saved with windows of {base.n_ctx} tokens, not {n_ctx}")
    if vocabulary_digest(model.metadata) != base.vocabulary_digest:
        raise OptionError(f"{base.path} is of another vocabulary than {model.path}; they have to be equal")
    if texts and len(texts) != len(base.texts):
        problem = f"{base.path} was made on other texts: {', '.join(base.texts)}"
        raise OptionError(problem, "leave -f out to take the texts that are in it")
    given: Sequence[NamedText | None] = texts or [None] * len(base.texts)
    said = []
    for (name, windows), text in zip(base.texts.items(), given, strict=True):
        if text is not None:
            found = windows_of(model, text, base.n_ctx).windows
            if len(found) < len(windows) or any(
                not np.array_equal(mine.inputs, its.inputs) or not np.array_equal(mine.scored, its.scored)
                for mine, its in zip(found, windows, strict=False)
            ):
                hint = "leave -f out to take the text that is in it"
                raise OptionError(f"{base.path} was made on another text than {text.path}", hint)
        path = None if text is None else str(text.path)
        said.append(Text(text.name if text else name, path, len(windows), sum(len(each.scored) for each in windows)))
    return _Reading(base.windows, said, [], [])


def _named(given: Texts, chat: bool) -> list[NamedText]:
    """The texts that a function is given. Raises OptionError for what are none, and for names that come twice."""
    if isinstance(given, Mapping):
        return [NamedText(str(name), as_path(path, "the text"), chat) for name, path in given.items()]
    several: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    texts = [
        each if isinstance(each, NamedText) else named_texts([str(as_path(each, "the text"))], chat)[0]
        for each in several
    ]
    check_names(texts)
    return texts


def _names(files: Sequence[Model]) -> list[str]:
    """What files are called in errors: their paths; the second of the same gets a number."""
    names: list[str] = []
    for file in files:
        name, count = str(file.path), 2
        while name in names:
            name, count = f"{file.path} ({count})", count + 1
        names.append(name)
    return names


@contextmanager
def _saving(
    path: Path, model: Model, reading: _Reading, n_ctx: int, reads: Any, overwrite: bool, threads: int | None
) -> "Iterator[Save]":
    """What writes the base's logits as they come, to a file that appears when the block ends."""
    from runtime.stored_logits import StoredWriter, stored_size

    size = len(model.metadata.get("tokenizer.ggml.tokens") or ())
    if len(reading.tokens) != n_ctx * len(reading.windows):
        raise OptionError("a base in llama.cpp's form has plain text alone, no conversations")
    check_target(path, reads, overwrite)
    check_space(path, stored_size(n_ctx, size, len(reading.windows)))
    with atomic_output(path, overwrite=overwrite, reads=reads) as file:
        writer = StoredWriter(file.write, size, thread_count(threads))
        writer.begin(np.array(reading.tokens, np.int64), n_ctx)
        yield lambda window, start, stop, rows: writer.rows(rows.logits)


def _figures(
    name: str, file: Model, reading: _Reading, found: "Predictions", targets: Any, tokenizer: "Tokenizer",
    lower_bound: bool,
) -> FileDivergence:  # fmt: skip
    from runtime import statistics
    from runtime.divergence import KL

    other, apart = found.others[name], found.apart[name]
    kl = apart[:, KL]

    def figures(part: slice) -> dict[str, Any]:
        return _known(statistics.figures(found.base[part], other[part], apart[part], targets[part]))

    ends = np.cumsum([len(window.scored) for window in reading.windows])
    values = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    return FileDivergence(
        str(file.path), _size(file), 8 * file.nbytes / values if values else 0.0, _type(file),
        figures(slice(None)), lower_bound, {text: figures(part) for text, part in reading.spans()},
        statistics.by_position(kl, found.position), statistics.histogram(kl),
        [float(value) for value in np.cumsum(kl)[ends - 1] / ends],
        _worst(reading, found, name, kl, targets, tokenizer),
    )  # fmt: skip


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures, None for those that cannot be had from what the base has kept."""
    return {
        name: _known(value) if isinstance(value, Mapping) else None if value != value else value
        for name, value in figures.items()
    }


def _size(file: Model) -> int:
    """Bytes of its files; those of its tensors where it has none."""
    try:
        return sum(path.stat().st_size for path in file.files) or file.nbytes
    except OSError:
        return file.nbytes


def _type(file: Model) -> str:
    """What its `general.file_type` is called; empty where it does not say."""
    from ..quantization.recipes import RECIPES

    number = file.metadata.get("general.file_type")
    return next((each.name for each in RECIPES.values() if each.file_type == number and number is not None), "")


def _worst(
    reading: _Reading, found: "Predictions", name: str, kl: Any, targets: Any, tokenizer: "Tokenizer"
) -> list[dict[str, Any]]:  # fmt: skip
    """The predictions that diverge furthest, with what the models saw and favoured. position: of the right token."""
    from runtime.divergence import LOG_P, TOP

    names = [text.name for text in reading.texts for _ in range(text.windows)]
    begins = np.cumsum([0, *(len(window.scored) for window in reading.windows)])
    first = np.cumsum([0, *(text.windows for text in reading.texts)])
    of_window = [i - first[np.searchsorted(first, i, "right") - 1] for i in range(len(reading.windows))]
    other, result = found.others[name], []

    def text(number: float) -> str:
        try:
            return tokenizer.decode([int(number)])
        except VocabularyError:  # the matrix is higher than the vocabulary
            return f"<{int(number)}>"

    for row in np.argsort(-kl, kind="stable")[:WORST]:
        number = int(found.window[row])
        window, place = reading.windows[number], int(found.position[row]) + 1
        diverged = dict(zip((window.scored + 1).tolist(), kl[begins[number] :].tolist(), strict=False))
        around = range(max(0, place - AROUND), min(len(window.inputs), place + AROUND))
        result.append({
            "text": names[number], "window": int(of_window[number]), "position": place, "kl": float(kl[row]),
            "before": tokenizer.decode(window.inputs[max(0, place - BEFORE) : place].tolist())[-BEFORE:],
            "token": text(targets[row]),
            "p_base": math.exp(found.base[row, LOG_P]), "p": math.exp(other[row, LOG_P]),
            "base_top": text(found.base[row, TOP]), "top": text(other[row, TOP]),
            "passage": [[text(window.inputs[i]), diverged.get(i, 0.0)] for i in around],
        })  # fmt: skip
    return result


def parse_limits(given: str) -> dict[str, float]:
    """Limits of KL figures by name, of "mean=0.02,p99.9=1". Raises OptionError for what is none."""
    from runtime.statistics import HIGH, LOW

    known = ("mean", "max", *HIGH, "median", *LOW, "min")
    limits: dict[str, float] = {}
    for part in given.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        try:
            limits[name] = float(value)
        except ValueError:
            name = ""
        if name not in known or not limits[name] >= 0:
            hint = f"name figures of the KL divergence, such as mean=0.02,p99.9=1; there are {', '.join(known)}"
            raise OptionError(f"{part!r} is no limit", hint)
    return limits


def exceeded(report: DivergenceReport, limits: Mapping[str, float]) -> list[str]:
    """A line for each figure of a file that is above its limit."""
    return [
        f"{file.path}: {name} KL divergence is {file.kl_divergence[name]:.6f}, above {limit:g}"
        for file in report.files
        for name, limit in limits.items()
        if not file.kl_divergence[name] <= limit
    ]
