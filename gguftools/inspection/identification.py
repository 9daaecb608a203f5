"""Find out how a quantized file was made from an original: by which recipe, with which exceptions and encoder.

The recipe is the one whose choice of formats fits best. Whether the bytes of a tensor are those that llama.cpp's
encoder makes of the original is found by encoding some of its rows, or all of them.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from archs.diffusion.layout import published_shape
from quants import Tensor, format_named
from quants.arguments import PathLike, thread_count
from quants.compilation import Codec, compile_codecs
from quants.errors import FormatError, OptionError
from quants.tensor import all_readable, restated
from runtime.arrays import Floats

from ..models.model import Model, opened
from ..quantization import recipes
from ..quantization.imatrix import ImportanceMatrix, importance_for, usable_matrix
from ..quantization.recipes import NOT_STORED, RECIPES, Choice, Options, Recipe, layer_of, model_facts, visit_order
from ..writing.items import Item, encode_rows, read_rows
from ..writing.row_blocks import Progress, RowBlock, over_rows, run_blocks
from .weight_errors import Pairs, plain_shapes, role_of

SAMPLE = 1 << 16  # values of a tensor that are compared
MIN_ROWS = 8
RUNS = 8  # parts of a tensor that rows are sampled from
ROUNDED = ("F16", "BF16", "Q8_0")  # formats an original may have been rounded to before it was quantized
FAR = 2.0  # times our encoder's error: more means other values, not another way of rounding
MAX_RULES = 12  # more make no usable command
GUESSED_FILE_TYPE = 1024  # added to a file type that a program guessed

# How a tensor's bytes can have been made; the first four are explained by the original.
COPIED, PLAIN, WEIGHTED = "copied", "plain", "imatrix"
OTHER_METHOD, OTHER_VALUES, UNKNOWN = "other method", "other values", "unknown"
MADE = {
    COPIED: "copied from the original",
    PLAIN: "as llama.cpp encodes the original without an importance matrix",
    WEIGHTED: "as llama.cpp encodes the original with this importance matrix",
    OTHER_METHOD: "near the original, with other bytes: another matrix, program or version made them",
    OTHER_VALUES: "other values than the original's",
    UNKNOWN: "of a type that cannot be encoded",
}
EXPLAINED = (COPIED, PLAIN, WEIGHTED)


@dataclass(frozen=True)
class TensorOrigin:
    """How one tensor was made.

    format: in the file; expected: the recipe's, None for a tensor that no recipe quantizes. made: a key of MADE. via:
    the format that the original was rounded to first. rows: how many were compared; equal_rows: how many are equal to
    the byte. relative: error of the compared rows over their root mean square; expected_relative: error of our encoder;
    both None if the bytes are explained.
    """

    name: str
    format: str
    expected: str | None
    made: str
    via: str | None = None
    rows: int = 0
    equal_rows: int = 0
    relative: float | None = None
    expected_relative: float | None = None

    @property
    def is_other_format(self) -> bool:
        return self.expected is not None and self.format != self.expected

    @property
    def is_explained(self) -> bool:
        """Return whether the bytes are those that llama.cpp makes of the original."""
        return self.made in EXPLAINED


@dataclass(frozen=True)
class Identification:
    """How a file was made from an original.

    recipe: the one whose formats fit best; pure: its default format throughout. also: other recipes that fit as well.
    declared: the recipe in the file's metadata; declared_imatrix: the name of the matrix there. imatrix: the matrix
    that was tried. rules: regular expressions and formats that explain `others`. rows, of_rows: rows compared, and rows
    in all. only_original, only_file, other_shapes: names of tensors.
    """

    original: Path
    file: Path
    recipe: str
    pure: bool
    also: tuple[str, ...]
    declared: str | None
    declared_imatrix: str | None
    imatrix: Path | None
    tensors: tuple[TensorOrigin, ...]
    rules: tuple[tuple[str, str], ...]
    rows: int
    of_rows: int
    only_original: tuple[str, ...] = ()
    only_file: tuple[str, ...] = ()
    other_shapes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def others(self) -> list[TensorOrigin]:
        """Return the tensors whose format is not the recipe's."""
        return [tensor for tensor in self.tensors if tensor.is_other_format]

    @property
    def unexplained(self) -> list[TensorOrigin]:
        """Return the tensors whose bytes are not explained."""
        return [tensor for tensor in self.tensors if not tensor.is_explained]

    @property
    def vias(self) -> list[str]:
        """Return the formats that the original was rounded to before it was quantized."""
        return sorted({tensor.via for tensor in self.tensors if tensor.via})

    @property
    def is_explained(self) -> bool:
        """Return whether every tensor exists and has the bytes that llama.cpp makes of the original."""
        return not (self.unexplained or self.only_original or self.only_file or self.other_shapes)

    @property
    def made(self) -> dict[str, int]:
        """Return the number of tensors for each key of MADE."""
        counts = Counter(tensor.made for tensor in self.tensors)
        return {made: counts[made] for made in MADE if counts[made]}

    @property
    def command(self) -> str | None:
        """Return a command that writes a file of the same formats; None if it needs too many rules."""
        if len(self.rules) > MAX_RULES:
            return None
        words = ["gguftools", "quantize", str(self.original), self.recipe, *(["--pure"] if self.pure else [])]
        matrix = self.imatrix if self.made.get(WEIGHTED) else self.declared_imatrix
        words += ["--imatrix", str(matrix)] if matrix else []
        words += [word for pattern, form in self.rules for word in ("--tensor-type", f"{pattern}={form}")]
        return shlex.join(words)

    @property
    def verdict(self) -> str:
        """Return a summary in one sentence."""
        name = f"{self.recipe}{', pure' if self.pure else ''}"
        others, unexplained = len(self.others), len(self.unexplained)
        declared = "" if self.declared in (None, self.recipe) else f" (declared: {self.declared})"
        formats = f"the formats of {name}{declared}"
        formats += f", but for {others} of {len(self.tensors)} tensors" if others else ""
        compared = "all rows compared" if self.rows == self.of_rows else f"{self.rows} of {self.of_rows} rows compared"
        if unexplained:
            return f"{formats}; {unexplained} of {len(self.tensors)} tensors were made differently; {compared}"
        rounded = f" of the original rounded to {' or '.join(self.vias)} first" if self.vias else ""
        return f"{formats}; every tensor to the byte as llama.cpp makes it{rounded}; {compared}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "original": str(self.original),
            "file": str(self.file),
            "summary": self.verdict,
            "explained": self.is_explained,
            "recipe": self.recipe,
            "pure": self.pure,
            "also": list(self.also),
            "declared": self.declared,
            "declared_imatrix": self.declared_imatrix,
            "imatrix": str(self.imatrix) if self.imatrix else None,
            "made": self.made,
            "rules": dict(self.rules),
            "command": self.command,
            "rows": self.rows,
            "of_rows": self.of_rows,
            "tensors": [{**asdict(tensor), "other_format": tensor.is_other_format} for tensor in self.tensors],
            "only_original": list(self.only_original),
            "only_file": list(self.only_file),
            "other_shapes": list(self.other_shapes),
            "warnings": list(self.warnings),
        }


def identify(
    original: PathLike | Model,
    file: PathLike | Model,
    *,
    imatrix: PathLike | ImportanceMatrix | None = None,
    full: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Identification:
    """Find out how a quantized file was made from an original: the recipe, and the tensors that were made otherwise.

    original: what it may have been made from: a GGUF file, a Hugging Face folder (as the file it would become) or a
    Model. file: the quantized one. imatrix: an importance matrix or its file, with which it may have been made. full:
    compare all rows, not some of each tensor. threads: default all processors. progress(bytes of the original read, of
    how many, tensor).
    Raises OptionError where the original is the smaller one, FileError, ModelError, VocabularyError for what cannot be
    opened, FileError for a matrix of another model.
    """
    first, second = opened(original), opened(file)
    matrix, warnings = usable_matrix(imatrix)
    pairs = Pairs(all_readable(plain_shapes(first)), _in_own_formats(second))
    if not pairs.readable:
        raise OptionError(f"{second.path} has no tensor of {first.path}", "they are of different models")
    if _bits(pairs, pairs.a) < _bits(pairs, pairs.b):
        raise OptionError(f"{first.path} has fewer bits than {second.path}", "the original comes first")
    declared, declared_imatrix = _declared(second), second.metadata.get("quantize.imatrix.file")
    weighted = declared_imatrix is not None or matrix is not None
    matcher = _RecipeMatcher(first, pairs)
    fits = matcher.fits(declared, weighted)
    best = fits[0]
    expected = {choice.name: choice for choice in best.choices}
    items = {
        name: Item(pairs.a[name], pairs.b[name].format, _importance(matrix, pairs.a[name], pairs.b[name]))
        for name in visit_order(pairs.readable)
    }
    comparison = _Comparison(items, pairs.b, threads, progress)
    origins = comparison.sampled()
    if full:
        origins = comparison.in_full(origins)
    tensors = [replace(each, expected=matcher.expected(expected[each.name])) for each in origins]
    tensors += [TensorOrigin(name, pairs.b[name].format.name, None, UNKNOWN) for name in pairs.unread]
    also = tuple(dict.fromkeys(f.recipe.name for f in fits if f.rank[:3] == best.rank[:3]))
    return Identification(
        first.path,
        second.path,
        best.recipe.name,
        best.pure,
        also[1:],
        declared,
        None if declared_imatrix is None else str(declared_imatrix),
        None if matrix is None else matrix.path,
        tuple(tensors),
        tuple(matcher.rules(best)),
        sum(each.rows for each in tensors),
        sum(pairs.b[each.name].rows for each in tensors),
        pairs.only_a,
        pairs.only_b,
        tuple(name for name, *_ in pairs.shapes),
        tuple(warnings),
    )


class _Fit(NamedTuple):
    """How well a recipe fits: the smaller the rank, the better. weighted: chosen as with an importance matrix."""

    rank: tuple[Any, ...]
    recipe: Recipe
    pure: bool
    weighted: bool
    choices: Sequence[Choice]


class _RecipeMatcher:
    """Compares the formats that recipes choose for an original's tensors with those of a file."""

    def __init__(self, original: Model, pairs: Pairs) -> None:
        shapes = {name: published_shape(original.metadata, name, each.shape) for name, each in pairs.a.items()}
        self.pairs, self.facts = pairs, model_facts(original.metadata, shapes)
        # All of the original's tensors: a recipe counts them.
        self.triples = [(name, tensor.shape, tensor.format) for name, tensor in pairs.a.items()]

    def fits(self, declared: str | None, weighted: bool) -> list[_Fit]:
        """Return all recipes, the best first: fewest tensors, then values, of other formats; then the usual or declared
        one.
        """
        fits = []
        for recipe in (recipe for recipe in RECIPES.values() if recipe.default is not None):
            for pure in (False, True):
                for with_matrix in (weighted, not weighted):
                    choices = self.choices(recipe, pure, with_matrix)
                    if choices is None:
                        continue
                    wrong = self.wrong(choices)
                    values = sum(self.pairs.a[name].size for name in wrong)
                    rank = len(wrong), values, pure, recipe.name != declared, with_matrix != weighted
                    fits.append(_Fit(rank, recipe, pure, with_matrix, choices))
        return sorted(fits, key=lambda fit: fit.rank)

    def choices(
        self, recipe: Recipe, pure: bool, weighted: bool, rules: Sequence[tuple[str, str]] = ()
    ) -> list[Choice] | None:
        """Return the formats that a recipe chooses; None if it has none for some tensor."""
        try:
            options = Options(pure=pure, rules=tuple(rules))
            return recipes.choose(recipe, self.triples, self.facts, weighted, options)
        except FormatError:
            return None

    def wrong(self, choices: Sequence[Choice]) -> list[str]:
        """Return the names of the tensors whose format in the file differs from the chosen one."""
        there = [choice for choice in choices if choice.name in self.pairs.readable]
        return [each.name for each in there if self.expected(each) not in (None, self.format(each.name))]

    def expected(self, choice: Choice) -> str | None:
        """Return the format chosen for a tensor; None if it is left as it is and the file has floats, too."""
        original, other = self.pairs.a[choice.name], self.pairs.b[choice.name]
        quantizable = recipes.is_quantizable(original.name, original.shape, original.format)
        return choice.format.name if quantizable or other.format.is_quantized else None

    def format(self, name: str) -> str:
        return self.pairs.b[name].format.name

    def rules(self, fit: _Fit) -> list[tuple[str, str]]:
        """Return rules for the tensors whose format is not the recipe's.

        One rule for a role and a format at a time, the one for the largest number of tensors first: each changes what
        the recipe's counters choose for the other tensors of the role.
        """
        rules: list[tuple[str, str]] = []
        done: set[str] = set()
        while choices := self.choices(fit.recipe, fit.pure, fit.weighted, rules):
            groups: dict[tuple[str, str], list[str]] = {}
            for name in self.wrong(choices):
                if name not in done and self.may_be_ruled(fit.recipe, name):
                    groups.setdefault((role_of(name), self.format(name)), []).append(name)
            if not groups:
                break
            (role, form), names = max(groups.items(), key=lambda group: len(group[1]))
            done.update(names)
            rules.append((self.pattern(role, names), form))
        return rules

    def pattern(self, role: str, names: Sequence[str]) -> str:
        """Return a regular expression for some tensors of one role."""
        layers = sorted({layer_of(name) for name in names})
        if layers == [-1]:
            return f"^{re.escape(role)}$"
        every = {name for name, *_ in self.triples if role_of(name) == role} == set(names)
        numbers = r"\d+" if every else "|".join(map(str, layers))
        return rf"^blk\.{f'({numbers})' if '|' in numbers else numbers}\.{re.escape(role)}$"

    def may_be_ruled(self, recipe: Recipe, name: str) -> bool:
        """Return whether a rule can decide on a tensor: not with recipes of floats, nor for tensors that are never
        quantized.
        """
        tensor, default = self.pairs.a[name], format_named(recipe.default or "")
        quantizable = recipes.is_quantizable(name, tensor.shape, tensor.format)
        return default.is_quantized and quantizable and self.format(name) not in NOT_STORED


def _in_own_formats(model: Model) -> dict[str, Tensor]:
    """Return the tensors in llama.cpp's formats. Raises OptionError for values that none of these holds."""
    tensors = {name: restated(tensor) for name, tensor in plain_shapes(model).items()}
    for tensor in tensors.values():
        if tensor.format.dialect:
            what = f"{tensor.name!r} is {tensor.format.name}, a format of {tensor.format.dialect}"
            problem = f"{model.path} was made by no recipe of llama.cpp: {what}"
            raise OptionError(problem, "`gguftools diff --errors` compares it")
    return tensors


def _bits(pairs: Pairs, tensors: Mapping[str, Tensor]) -> int:
    return sum(tensors[name].nbytes for name in pairs.readable)


def _declared(model: Model) -> str | None:
    number = model.metadata.get("general.file_type")
    try:
        wanted = int(number) % GUESSED_FILE_TYPE if number is not None else None
    except (TypeError, ValueError, OverflowError):
        return None
    return next((recipe.name for recipe in RECIPES.values() if recipe.file_type == wanted), None)


def _importance(matrix: ImportanceMatrix | None, a: Tensor, b: Tensor) -> Floats | None:
    if matrix is None or not b.format.uses_importance:
        return None
    return importance_for(matrix, a, allow_missing_experts=True)


class _EncodingMethod(NamedTuple):
    """One way to encode a tensor, with its key of MADE."""

    made: str
    via: str | None
    item: Item

    def encode(self, values: Floats, first_row: int) -> NDArray[np.uint8] | None:
        """Return the encoded rows; None if the values cannot be encoded."""
        if self.via:
            form = format_named(self.via)
            with np.errstate(over="ignore"):
                values = form.decode(form.encode(values))
        if not np.isfinite(values).all():
            return None
        try:
            return encode_rows(self.item, values, first_row)
        except FormatError:  # beyond the range of F16
            return None


@dataclass(frozen=True)
class _Comparison:
    """Compares a file's tensors with what an original's become. items: how to encode the original's."""

    items: Mapping[str, Item]
    others: Mapping[str, Tensor]
    threads: int | None
    progress: Progress | None

    def sampled(self) -> list[TensorOrigin]:
        """Return how each tensor was made, judged by a sample of its rows."""
        threads = thread_count(self.threads)
        compile_codecs(self._codecs(), processes=threads)
        blocks = [
            RowBlock(item.tensor, 0, sum(stop - start for start, stop in _runs(item.tensor)))
            for item in self.items.values()
        ]
        total = sum((block.stop - block.start) * block.tensor.row_bytes for block in blocks)
        results = run_blocks(
            blocks,
            lambda block: self._sampled(block.tensor),
            total,
            threads=threads,
            progress=self.progress,
            in_order=True,
        )
        return [origin for _, origin in results]

    def in_full(self, sampled: Sequence[TensorOrigin]) -> list[TensorOrigin]:
        """Return the same judged by all rows, with the method that fits the sample best."""
        ways = {each.name: self._way(each) for each in sampled}
        equal = Counter[str]()
        tensors = [self.items[each.name].tensor for each in sampled]
        look = partial(self._equal_rows, ways)
        for tensor, _, count in over_rows(tensors, look, threads=self.threads, progress=self.progress):
            equal[tensor.name] += count
        checked = []
        for each in sampled:
            rows, same = self.items[each.name].tensor.rows, equal[each.name]
            made = each.made if each.made not in EXPLAINED or same == rows else OTHER_VALUES
            checked.append(replace(each, made=made, rows=rows, equal_rows=same))
        return checked

    def _codecs(self) -> Iterator[Codec]:
        for item in self.items.values():
            yield Codec(item.tensor.format.name, "decode")
            yield Codec(item.format.name, "decode")
            if not item.format.needs_importance:
                yield Codec(item.format.name, "encode")
            if item.importance is not None:
                yield Codec(item.format.name, "weighted")

    def _ways(self, item: Item) -> Iterator[_EncodingMethod]:
        """Yield the possible methods, likely ones first."""
        tensor = item.tensor
        fitting = (via for via in ROUNDED if not tensor.width % format_named(via).block_size)
        rounded = (via for via in fitting if via != tensor.format.name and not tensor.format.is_quantized)
        for via in (None, *rounded):
            if not item.format.needs_importance:
                yield _EncodingMethod(PLAIN, via, item._replace(importance=None))
            if item.importance is not None:
                yield _EncodingMethod(WEIGHTED, via, item)

    def _way(self, origin: TensorOrigin) -> _EncodingMethod | None:
        """Return the method to compare all rows with."""
        ways = list(self._ways(self.items[origin.name]))
        fitting = [way for way in ways if (way.made, way.via) == (origin.made, origin.via)]
        return next(iter(fitting or ways), None)

    def _equal_rows(self, ways: Mapping[str, _EncodingMethod | None], tensor: Tensor, start: int, stop: int) -> int:
        other = self.others[tensor.name]
        raw, theirs = (read_rows(each, start, stop, finite=False) for each in (tensor, other))
        if tensor.format.name == other.format.name and np.array_equal(raw, theirs):
            return stop - start
        way = ways[tensor.name]
        ours = None if way is None else way.encode(tensor.format.decode(np.ascontiguousarray(raw)), start)
        return 0 if ours is None else int((ours == theirs).all(axis=1).sum())

    def _sampled(self, tensor: Tensor) -> TensorOrigin:
        item, other = self.items[tensor.name], self.others[tensor.name]
        runs = _runs(tensor)
        raw = [np.ascontiguousarray(read_rows(tensor, *run, finite=False)) for run in runs]
        theirs = np.concatenate([read_rows(other, *run, finite=False) for run in runs])
        count, form = len(theirs), other.format.name
        if form == tensor.format.name and np.array_equal(np.concatenate(raw), theirs):
            return TensorOrigin(tensor.name, form, None, COPIED, None, count, count)
        values = [tensor.format.decode(each) for each in raw]
        equal_rows, ours = 0, None
        for way in self._ways(item):
            pieces = [way.encode(each, start) for each, (start, _) in zip(values, runs, strict=True)]
            encoded = [piece for piece in pieces if piece is not None]
            if len(encoded) < len(pieces):
                continue
            made = np.concatenate(encoded)
            equal = int((made == theirs).all(axis=1).sum())
            if equal == count:
                return TensorOrigin(tensor.name, form, None, way.made, way.via, count, count)
            equal_rows, ours = max(equal_rows, equal), made if ours is None else ours
        wanted = np.concatenate(values)
        relative = _relative(other.format.decode(np.ascontiguousarray(theirs)), wanted)
        expected = None if ours is None else _relative(other.format.decode(ours), wanted)
        near = relative is not None and expected is not None and relative <= FAR * expected
        # Without a matrix the error of a format that needs one is unknown: half of the values' size is the limit.
        near = near or (expected is None and relative is not None and relative < 1 / FAR)
        made_by = OTHER_METHOD if near else OTHER_VALUES
        return TensorOrigin(tensor.name, form, None, made_by, None, count, equal_rows, relative, expected)


def _runs(tensor: Tensor) -> list[tuple[int, int]]:
    """Return the ranges of rows of a sample: all of a small tensor, else some from places spread over it."""
    rows = max(MIN_ROWS, SAMPLE // max(1, tensor.width))
    if rows >= tensor.rows:
        return [(0, tensor.rows)]
    each = rows // RUNS
    starts = np.linspace(0, tensor.rows - each, RUNS).astype(int).tolist()
    return [(start, start + each) for start in starts]


def _relative(values: Floats, wanted: Floats) -> float | None:
    """Return the error over the root mean square of the wanted values; None if it is not finite."""
    with np.errstate(all="ignore"):
        x = wanted.astype(np.float64)
        ratio = np.sqrt(np.square(values - x).sum() / np.square(x).sum())
    return float(ratio) if np.isfinite(ratio) else None
