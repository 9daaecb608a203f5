"""Search for the recipe of a size by the errors of weights: for image and video models, which are not run.

A weight in a format costs the square of its relative error, as `diff --errors` measures it, times its share: of some
rows, and with columns weighted by their importance where a matrix is given. The sum over all weights is made least
within the size (`knapsack`). Shares grow with the number of values. Where somebody measured what the blocks of a model
lose, as of Flux.1, each block's weights have that together (`block_losses`); the blocks of other models count alike.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archs.diffusion.layout import published_shape
from quants import Format, Tensor, format_named
from quants.arguments import thread_count
from quants.errors import OptionError
from quants.tensor import readable
from quants.threads import started_pool

from ..models.contents import streamed_tensors
from ..models.model import Model
from ..quantization.diffusion_recipes import family_for
from ..quantization.imatrix import ImportanceMatrix, importance_for
from ..quantization.recipe_texts import recipe_of, recipe_text, rules_for
from ..quantization.recipes import Recipe
from ..writing.finiteness import check_finite_values
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, TensorReport
from ..writing.resume import SEARCHED, fingerprint
from .block_losses import losses_by_block
from .encoded import Encoded, open_encoded
from .knapsack import Candidate, best_within, limits
from .search import digest_of
from .target import PlanFor, Sizing, Target, short_of, sizing

VERSION = 1  # of how weights are measured
SAMPLED = 1 << 17  # values of a weight that are encoded
# Formats that ComfyUI-GGUF decodes fast, and those that need an importance matrix.
FAST = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q3_K", "Q2_K")
SMALL = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
LEGACY = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "IQ4_NL", "Q4_0")
# Power of the number of values. On random transformers any from 0.25 to 1 gave outputs 7 to 8 % less error than 0, and
# 0.25 was never far from the best of them (`benchmarks.diffusion_mixes`).
SHARE = 0.25
Errors = Mapping[str, Mapping[str, float]]  # weight → format → square of the relative error


def _fitting(names: Sequence[str], width: int) -> list[Format]:
    return [form for form in map(format_named, LEGACY if width % 256 else names) if width % form.block_size == 0]


@dataclass(frozen=True)
class WeightSearchResult:
    """Hold a recipe for a target, and its text.

    error: root of the mean over values of the squared relative errors of their weights. warning: about a size that is
    smaller than the target.
    """

    recipe: Recipe
    error: float
    text: str
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as `quantize --json` prints it."""
        return {"error": self.error, "recipe": self.text}


def weight_search(
    model: Model,
    target: Target,
    plan: PlanFor,
    decided: Callable[[TensorReport], bool],
    requantize: bool,
    matrix: ImportanceMatrix | None,
) -> "WeightSearch":
    """Return a search for a target that can be reached. decided, requantize: as of `sizing`.

    Formats of few bits are taken only where others are too large, and for weights that the matrix has. Raises
    OptionError.
    """
    importances = {} if matrix is None else _importances(matrix, model)

    def fast(name: str, width: int) -> list[Format]:
        return _fitting(FAST, width)

    def small(name: str, width: int) -> list[Format]:
        return _fitting((*FAST, *SMALL) if name in importances else FAST, width)

    def plan_with_matrix(recipe: Recipe, _: ImportanceMatrix | None) -> OutputReport:
        return plan(recipe, matrix)

    sizes = sizing(model, plan_with_matrix, decided, requantize, fast)
    is_small = sizes.total(target) < sizes.fixed(target) + sizes.reach(target)[0]
    if is_small:
        sizes = replace(sizes, candidates_of=small)
    try:
        sizes.check_formats(target)
    except OptionError as error:
        hint = "with an importance matrix, formats of fewer bits can be used" if is_small and matrix is None else ""
        raise OptionError(str(error), hint) from None
    return WeightSearch(model, sizes, matrix, importances)


def _importances(matrix: ImportanceMatrix, model: Model) -> dict[str, NDArray[np.float32]]:
    """Return the importance of the columns of each weight that a matrix has."""
    weights = [each for each in model.tensors.values() if len(each.shape) == 2]
    found = {each.name: importance_for(matrix, each, allow_missing_experts=True) for each in weights}
    return {name: each[0] for name, each in found.items() if each is not None}


@dataclass(frozen=True)
class WeightSearch:
    """Search for the recipe of an image model. sizes: its weights, and the bytes of all others.

    importances: of columns, by weight.
    """

    model: Model
    sizes: Sizing
    matrix: ImportanceMatrix | None = None
    importances: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @contextmanager
    def run(self, target: Target, write: WriteOptions, output: Path | None) -> Iterator[WeightSearchResult]:
        """Yield the best recipe. write: threads, progress, resume.

        output: the file next to which measurements are kept, until the block ends well; None: in a temporary folder.
        Raises FormatError for weights that are not finite, FileError.
        """
        with self._measured(write, output) as errors:
            yield self._best(target, errors)

    def _best(self, target: Target, errors: Errors) -> WeightSearchResult:
        size, sizes = self.sizes.size_of(target), self.sizes
        shares = self.shares()
        tables = {
            name: [
                Candidate(
                    form.name,
                    size(math.prod(shape[:-1]) * form.row_bytes(shape[-1])),
                    errors[name][form.name] * shares[name],
                )
                for form in forms
            ]
            for name, forms in sizes.candidates().items()
            for shape in [sizes.searched[name].shape]
        }
        sizes.check(target, *limits(tables))
        fixed = sizes.fixed(target)
        chosen = best_within(tables, sizes.total(target) - fixed)
        rules = rules_for({name: each.format for name, each in chosen.items()})
        values = {name: math.prod(sizes.searched[name].shape) for name in chosen}
        squares = sum(errors[name][each.format] * values[name] for name, each in chosen.items())
        error = math.sqrt(squares / sum(values.values()))
        used = fixed + sum(each.nbytes for each in chosen.values())
        text = recipe_text(rules, self._remarks(target, error, len(chosen)))
        recipe = recipe_of(target.name, rules, "found by measurement")
        return WeightSearchResult(recipe, error, text, short_of(sizes.total(target), used))

    def shares(self) -> dict[str, float]:
        """Return by how much the squared relative error of each weight counts."""
        searched = self.sizes.searched
        shapes = {
            name: published_shape(self.model.metadata, name, each.shape) for name, each in self.model.tensors.items()
        }
        family = family_for(self.model.architecture, shapes)
        own = {name: math.prod(each.shape) ** SHARE for name, each in searched.items()}
        losses = losses_by_block(family.name if family else "", searched)
        for block, loss in losses.items():
            names = [name for name in own if name.startswith(block)]
            whole = sum(own[name] for name in names)
            own |= {name: loss * own[name] / whole for name in names}
        return own

    def _remarks(self, target: Target, error: float, count: int) -> list[str]:
        by = "alike" if self.matrix is None else f"by {self.matrix.path.name}"
        return [
            f"gguftools recipe for {self.sizes.described(target, self.sizes.total(target))}",
            f"relative error {100 * error:.4g} %, root mean square over the values of {count} weights",
            f"measured on {SAMPLED} values of a weight, columns weighted {by}",
        ]

    @contextmanager
    def _measured(self, write: WriteOptions, output: Path | None) -> Iterator[Errors]:
        """Measure all weights in all formats, but for those that an interrupted run measured."""
        candidates, origin = self.sizes.candidates(), self.model.origin
        forms = {name: [form.name for form in some] for name, some in candidates.items()}
        weights = {
            name: digest_of({"": self.importances[name].tolist()}) for name in candidates if name in self.importances
        }
        head = {
            "gguftools": VERSION,
            "errors": SAMPLED,
            "candidates": digest_of(forms),
            "weights": digest_of(weights),
            "sources": fingerprint(origin.files, origin.recorded) if output else [],
        }
        with ExitStack() as stack:
            place = output or Path(stack.enter_context(TemporaryDirectory(prefix="gguftools-"))) / "search"
            kept = stack.enter_context(open_encoded(place, head, write.resume and output is not None, SEARCHED))
            kept.restore({})
            self._measure(kept, candidates, write)
            yield kept.figures

    def _measure(self, kept: Encoded, candidates: Mapping[str, Sequence[Format]], write: WriteOptions) -> None:
        tensors = streamed_tensors(self.model)
        left = [name for name in candidates if name not in kept.figures]
        total = sum(tensors[name].nbytes for name in candidates)
        done = total - sum(tensors[name].nbytes for name in left)
        with started_pool(thread_count(write.threads)) as pool:
            tasks = [
                pool.submit(relative_errors, tensors[name], candidates[name], self.importances.get(name))
                for name in left
            ]
            try:
                for name, task in zip(left, tasks, strict=True):
                    kept.note(name, task.result())
                    done += tensors[name].nbytes
                    if write.progress is not None:
                        write.progress(done, total, name)
            finally:
                for task in tasks:
                    task.cancel()


def relative_errors(
    tensor: Tensor, forms: Sequence[Format], importance: NDArray[np.float32] | None = None
) -> dict[str, float]:
    """Return format → squared relative error of a weight, by rows spread over it. importance: of its columns.

    Raises FormatError for NaN and infinity.
    """
    readable_tensor = readable(tensor)
    count = min(tensor.rows, max(1, SAMPLED // tensor.width))
    rows = np.unique(np.linspace(0, tensor.rows - 1, count).round().astype(np.int64)).tolist()
    values = np.concatenate([readable_tensor.float32(row, row + 1) for row in rows])
    check_finite_values(tensor, values, rows[0])
    factors = np.ones(tensor.width) if importance is None else importance.astype(np.float64)
    power = float(np.square(values, dtype=np.float64).sum(axis=0) @ factors)
    errors = {}
    for form in forms:
        lost = form.decode(form.encode(values, importance)) - values
        squares = float(np.square(lost, dtype=np.float64).sum(axis=0) @ factors)
        errors[form.name] = squares / power if power > 0 else 0.0
    return errors
