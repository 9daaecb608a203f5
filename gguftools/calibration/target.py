"""The recipe for a file of a wanted size."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quants import Format, format_named
from quants.arguments import PathLike, thread_count
from quants.errors import OptionError

from ..measurement.perplexity import tokens_at_once
from ..models.model import Model
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.recipe_texts import recipe_of, recipe_text, rules_for
from ..quantization.recipes import Recipe, is_quantizable
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, TensorReport
from ..writing.resume import SEARCHED, fingerprint
from .encoded import encoded_beside
from .knapsack import FULL
from .search import Choice, Search, digest_of, searched, windows_for
from .sensitivity import candidates_for
from .texts import Calibration

PlanFor = Callable[[Recipe, ImportanceMatrix | None], OutputReport]
VERSION = 1  # of how weights are measured: an earlier search of another one is not gone on with
STEPS = 30  # of the progress, beside the layers
LARGE = Recipe("target", 7, "Q8_0", 8.5, "what a search begins with")
LEAST_BITS, MOST_BITS = 0.5, 32.0


@dataclass(frozen=True)
class Target:
    """What a file is to have: bytes in all, or bits per weight of tensor data."""

    size: int | None = None
    bpw: float | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for both, neither, or numbers that are none."""
        if (self.size is None) == (self.bpw is None):
            raise OptionError("a target is a size or bits per weight", "give one of target_size and target_bpw")
        if self.size is not None and (isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1):
            raise OptionError(f"target_size is {self.size!r}; a number of bytes was expected")
        bpw = self.bpw
        if bpw is not None and not (isinstance(bpw, (int, float)) and LEAST_BITS <= bpw <= MOST_BITS):
            problem = f"target_bpw is {bpw!r}; bits per weight from {LEAST_BITS:g} to {MOST_BITS:g} were expected"
            raise OptionError(problem)

    @property
    def name(self) -> str:
        """What its recipe is called."""
        return f"{self.bpw:g}bpw" if self.bpw is not None else f"{(self.size or 0) / 1e6:.6g}MB"


@dataclass(frozen=True)
class SearchOptions:
    """What a recipe is searched for: one that moves the predictions least at a size (`calibration.search`).

    target_size, target_bpw: bytes of the file, or bits per weight. calibrate: texts to measure that on, files beside
    which the package's own are read, or a Calibration; default the package's own, or those of GPTQ. Raises OptionError
    for both sizes, none, or numbers that mean nothing.
    """

    target_size: int | None = None
    target_bpw: float | None = None
    calibrate: PathLike | Sequence[PathLike] | Calibration | None = None

    def __post_init__(self) -> None:
        Target(self.target_size, self.target_bpw)

    @property
    def target(self) -> Target:
        return Target(self.target_size, self.target_bpw)


@dataclass(frozen=True)
class Found:
    """A recipe for a target, the mean squares of inputs that its weights are encoded by, and its text.

    warning: that it is smaller than it was to be.
    """

    recipe: Recipe
    matrix: ImportanceMatrix
    choice: Choice
    text: str
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As `quantize --json` shows it."""
        return {"predicted": self.choice.predicted, "measured": self.choice.measured, "recipe": self.text}


@dataclass
class Sizing:
    """Which of an output's weights are searched for, and the bytes of all the rest.

    base: the output as it is planned in large formats.
    """

    base: OutputReport
    searched: dict[str, TensorReport]
    alignment: int

    def candidates(self) -> dict[str, list[Format]]:
        return {name: candidates_for(each.shape[-1]) for name, each in self.searched.items()}

    def formats(self) -> dict[str, str]:
        """Of all tensors whose format a recipe decides, those of the base."""
        return {
            each.name: each.format
            for each in self.base.tensors
            if is_quantizable(each.name, each.shape, format_named(each.source))
        }

    def size_of(self, target: Target) -> Callable[[int], int]:
        """Bytes of a tensor → bytes that count for the target: in a file each begins at a multiple."""
        alignment = 1 if target.size is None else self.alignment
        return lambda nbytes: -(-nbytes // alignment) * alignment

    def fixed(self, target: Target) -> int:
        """Bytes of what is not searched for."""
        size = self.size_of(target)
        own = sum(size(each.nbytes) for each in self.searched.values())
        if target.size is not None:
            return self.base.nbytes - own
        return sum(each.nbytes for each in self.base.tensors) - own

    @property
    def values(self) -> int:
        return sum(math.prod(each.shape) for each in self.base.tensors)

    def total(self, target: Target) -> int:
        """Bytes that a target allows."""
        return target.size if target.size is not None else int((target.bpw or 0) * self.values / 8)

    def said(self, target: Target, nbytes: int, up: bool = False) -> str:
        """So many bytes in the words of a target; up: rounded up to what can be asked for."""
        if target.size is not None:
            return f"{nbytes:,} bytes"
        exact = 8 * nbytes / self.values * 1000
        return f"{(math.ceil(exact) if up else math.floor(exact)) / 1000:.3f} bits per weight"

    def check_formats(self, target: Target) -> None:
        """`check` by what the weights' formats allow, before anything is measured."""
        size, reach = self.size_of(target), []
        for name, forms in self.candidates().items():
            shape = self.searched[name].shape
            rows = math.prod(shape[:-1])
            reach.append([size(rows * form.row_bytes(shape[-1])) for form in forms])
        self.check(target, sum(map(min, reach)), sum(map(max, reach)))

    def check(self, target: Target, fewest: int, most: int) -> None:
        """Raise OptionError for a target out of reach. fewest, most: bytes that the weights can have."""
        fixed, total = self.fixed(target), self.total(target)
        if fixed + fewest <= total <= (fixed + most) * 1.001:
            return
        reach = f"{self.said(target, fixed + fewest, up=True)} to {self.said(target, fixed + most)}"
        much = "small" if total < fixed + fewest else "large"
        raise OptionError(f"the target of {self.said(target, total)} is too {much}: {reach} can be reached")


def sizing(model: Model, plan: PlanFor, decided: Callable[[TensorReport], bool], requantize: bool) -> Sizing:
    """What there is to search for. decided(tensor): whether the user chose its format already.

    Raises OptionError where nothing is, or where weights are quantized already and that is not allowed.
    """
    base = plan(LARGE, None)
    found = {
        each.name: each
        for each in base.tensors
        if each.format in ("Q8_0",)
        and len(each.shape) in (2, 3)
        and not decided(each)
        and candidates_for(each.shape[-1])
    }
    if not found:
        raise OptionError(f"{model.path} has no weights to choose formats for")
    again = [name for name in found if model.tensors[name].format.is_quantized]
    if again and not requantize:
        where = f"{again[0]!r} is {model.tensors[again[0]].format.name} in {model.path.name}"
        hint = "start from a float file, or pass `allow_requantize`"
        raise OptionError(f"{where}; encoding it again loses quality", hint)
    return Sizing(base, found, model.origin.alignment)


@contextmanager
def measured(
    model: Model, sizes: Sizing, calibration: Calibration, run: WriteOptions, beside: Path | None = None
) -> Iterator[Search]:
    """Measure what the weights cost in each format; see `searched`. run: its threads, progress (done, of how many, what
    is done), and whether to go on from an earlier run.

    beside: an output that what is measured is kept beside, until the block ends well. None for a folder of the system.
    Raises what reading the texts does, ModelError, FileError.
    """
    from runtime.model import Model as RunningModel

    layers, threads = int(model.metadata.get(f"{model.architecture}.block_count", 1)), thread_count(run.threads)
    total, done = layers + STEPS, 0

    def tell(where: str) -> None:
        nonlocal done
        done = min(done + 1, total)
        if run.progress is not None:
            run.progress(model.nbytes * done // total, model.nbytes, where)

    windows, candidates = windows_for(model, calibration), sizes.candidates()
    texts = [text.name for text in calibration.all_texts]
    forms = {name: [form.name for form in some] for name, some in candidates.items()}
    head = {
        "gguftools": VERSION,
        "texts": windows.digest(),
        "names": texts,
        "candidates": digest_of(forms),
        "sources": fingerprint(model.origin.files, model.origin.recorded) if beside else [],
    }
    with ExitStack() as stack:
        place = beside or Path(stack.enter_context(TemporaryDirectory(prefix="gguftools-"))) / "search"
        kept = stack.enter_context(encoded_beside(place, head, run.resume and beside is not None, SEARCHED))
        net = RunningModel(model.metadata, model.streamed(), threads=threads)
        at_once = max(1, tokens_at_once(model) // windows.fitted.shape[1])
        yield searched(net, candidates, windows, at_once, texts, kept, tell)


def recipe_for(search: Search, sizes: Sizing, target: Target, plan: PlanFor) -> Found:
    """The best recipe for a target. Raises OptionError where it is out of reach."""
    size, sizes = sizes.size_of(target), replace(sizes, base=plan(LARGE, search.matrix))  # it adds keys to the file
    sizes.check(target, *_all_limits(search, sizes, target))
    unseen = [name for name in sizes.searched if name not in search.weights_measured()]
    fixed = sizes.fixed(target) + sum(size(sizes.searched[name].nbytes) for name in unseen)
    choice = search.choose(sizes.total(target) - fixed, size)
    rules = rules_for({name: choice.formats.get(name, form) for name, form in sizes.formats().items()})
    recipe = recipe_of(target.name, rules, "found by measurement")
    used = fixed + choice.nbytes
    text = recipe_text(rules, _remarks(search, sizes, target, choice))
    return Found(recipe, search.matrix, choice, text, _short(sizes.total(target), used))


def _short(total: int, used: int) -> str | None:
    """What to say where a choice is far from what its target allows."""
    if used >= FULL * total:
        return None
    return f"{100 * (1 - used / total):.1f} % of the target are unused: no larger formats are nearer to the original"


def _all_limits(search: Search, sizes: Sizing, target: Target) -> tuple[int, int]:
    size, unseen = sizes.size_of(target), set(sizes.searched) - set(search.weights_measured())
    fewest, most = search.limits(size)
    rest = sum(size(sizes.searched[name].nbytes) for name in unseen)
    return fewest + rest, most + rest


def _remarks(search: Search, sizes: Sizing, target: Target, choice: Choice) -> list[str]:
    texts = ", ".join(search.matrix.datasets)
    windows = f"{len(search.windows.held)} windows of {search.windows.held.shape[1]} tokens held back"
    return [
        f"gguftools recipe for {sizes.said(target, sizes.total(target))}",
        f"KL divergence {choice.measured:.6f} nats a token on {windows}; {choice.predicted:.6f} predicted",
        f"measured on {texts}",
    ]
