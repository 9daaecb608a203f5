"""Find the recipe for a file of a given size."""

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

from ..models.contents import streamed_tensors
from ..models.devices import running_on
from ..models.model import Model
from ..quantization.imatrix import ImportanceMatrix
from ..quantization.recipe_texts import recipe_of, recipe_text, rules_for
from ..quantization.recipes import Recipe, is_quantizable
from ..writing.options import WriteOptions
from ..writing.report import OutputReport, TensorReport
from ..writing.resume import SEARCHED, fingerprint
from .bounds import windows_on
from .encoded import open_encoded
from .knapsack import FULL
from .search import Choice, Search, digest_of, searched, windows_for
from .sensitivity import candidates_for
from .texts import Calibration

PlanFor = Callable[[Recipe, ImportanceMatrix | None], OutputReport]
CandidatesOf = Callable[[str, int], list[Format]]
VERSION = 1  # of how weights are measured: an earlier search of another one is not gone on with
STEPS = 30  # of the progress, besides the layers
LARGE = Recipe("target", 7, "Q8_0", 8.5, "what a search begins with")
MIN_BITS, MAX_BITS = 0.5, 32.0


@dataclass(frozen=True)
class Target:
    """Hold the wanted size of a file: bytes in all, or bits per weight of tensor data."""

    size: int | None = None
    bpw: float | None = None

    def __post_init__(self) -> None:
        """Raise OptionError for both, neither, or invalid numbers."""
        if (self.size is None) == (self.bpw is None):
            raise OptionError("a target is a size or bits per weight", "give one of target_size and target_bpw")
        if self.size is not None and (isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1):
            raise OptionError(f"target_size is {self.size!r}; a number of bytes was expected")
        bpw = self.bpw
        if bpw is not None and not (isinstance(bpw, (int, float)) and MIN_BITS <= bpw <= MAX_BITS):
            problem = f"target_bpw is {bpw!r}; bits per weight from {MIN_BITS:g} to {MAX_BITS:g} were expected"
            raise OptionError(problem)

    @property
    def name(self) -> str:
        """Return the name of its recipe."""
        return f"{self.bpw:g}bpw" if self.bpw is not None else f"{(self.size or 0) / 1e6:.6g}MB"


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search for the recipe that changes predictions least at a size (`calibration.search`).

    Of an image or video model it is the recipe with the least errors of weights (`calibration.weight_search`).
    target_size, target_bpw: bytes of the file, or bits per weight. calibrate: texts to measure on, files to which the
    package's own are added, or a Calibration; default the package's own, or those of GPTQ. Raises OptionError for both
    sizes, none, or invalid numbers.
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
class SearchResult:
    """Hold a recipe for a target, the mean squares of inputs by which its weights are encoded, and its text.

    warning: about a size that is smaller than the target.
    """

    recipe: Recipe
    matrix: ImportanceMatrix
    choice: Choice
    text: str
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as `quantize --json` prints it."""
        return {"predicted": self.choice.predicted, "measured": self.choice.measured, "recipe": self.text}


def formats_by_width(name: str, width: int) -> list[Format]:
    """Return the formats that a weight of a text model may get."""
    return candidates_for(width)


@dataclass
class Sizing:
    """Hold the weights of an output that are searched for, and count the bytes of all others.

    base: the output as it is planned in large formats. candidates_of(name, width): the formats that a weight may have.
    """

    base: OutputReport
    searched: dict[str, TensorReport]
    alignment: int
    candidates_of: CandidatesOf = formats_by_width

    def candidates(self) -> dict[str, list[Format]]:
        return {name: self.candidates_of(name, each.shape[-1]) for name, each in self.searched.items()}

    def formats(self) -> dict[str, str]:
        """Return the base's formats of all tensors whose format a recipe decides."""
        return {
            each.name: each.format
            for each in self.base.tensors
            if is_quantizable(each.name, each.shape, format_named(each.source))
        }

    def size_of(self, target: Target) -> Callable[[int], int]:
        """Return the function from a tensor's bytes to those that count for the target; files align tensors."""
        alignment = 1 if target.size is None else self.alignment
        return lambda nbytes: -(-nbytes // alignment) * alignment

    def fixed(self, target: Target) -> int:
        """Return the bytes of tensors that are not searched for."""
        size = self.size_of(target)
        own = sum(size(each.nbytes) for each in self.searched.values())
        if target.size is not None:
            return self.base.nbytes - own
        return sum(each.nbytes for each in self.base.tensors) - own

    @property
    def values(self) -> int:
        return sum(math.prod(each.shape) for each in self.base.tensors)

    def total(self, target: Target) -> int:
        """Return the bytes that a target allows."""
        return target.size if target.size is not None else int((target.bpw or 0) * self.values / 8)

    def described(self, target: Target, nbytes: int, up: bool = False) -> str:
        """Return a number of bytes in the target's unit; up: rounded up to what can be asked for."""
        if target.size is not None:
            return f"{nbytes:,} bytes"
        exact = 8 * nbytes / self.values * 1000
        return f"{(math.ceil(exact) if up else math.floor(exact)) / 1000:.3f} bits per weight"

    def check_formats(self, target: Target) -> None:
        """Check the target by the weights' formats, before anything is measured; see `check`."""
        self.check(target, *self.reach(target))

    def reach(self, target: Target) -> tuple[int, int]:
        """Return the fewest and the most bytes that the weights can have."""
        size, ranges = self.size_of(target), []
        for name, forms in self.candidates().items():
            shape = self.searched[name].shape
            rows = math.prod(shape[:-1])
            ranges.append([size(rows * form.row_bytes(shape[-1])) for form in forms])
        return sum(map(min, ranges)), sum(map(max, ranges))

    def check(self, target: Target, min_bytes: int, max_bytes: int) -> None:
        """Raise OptionError for a target out of reach. min_bytes, max_bytes: that the weights can have."""
        fixed, total = self.fixed(target), self.total(target)
        if fixed + min_bytes <= total <= (fixed + max_bytes) * 1.001:
            return
        reach = f"{self.described(target, fixed + min_bytes, up=True)} to {self.described(target, fixed + max_bytes)}"
        much = "small" if total < fixed + min_bytes else "large"
        raise OptionError(f"the target of {self.described(target, total)} is too {much}: {reach} can be reached")


def sizing(
    model: Model,
    plan: PlanFor,
    decided: Callable[[TensorReport], bool],
    requantize: bool,
    candidates_of: CandidatesOf = formats_by_width,
) -> Sizing:
    """Return what can be searched for. decided(tensor): the user chose its format already. candidates_of: of `Sizing`.

    Raises OptionError if nothing can be, or if weights are quantized already and that is not allowed.
    """
    base = plan(LARGE, None)
    searched = {
        each.name: each
        for each in base.tensors
        if each.format in ("Q8_0",)
        and len(each.shape) in (2, 3)
        and not decided(each)
        and candidates_of(each.name, each.shape[-1])
    }
    if not searched:
        raise OptionError(f"{model.path} has no weights to choose formats for")
    again = [name for name in searched if model.tensors[name].format.is_quantized]
    if again and not requantize:
        where = f"{again[0]!r} is {model.tensors[again[0]].format.name} in {model.path.name}"
        hint = "start from a float file, or pass `allow_requantize`"
        raise OptionError(f"{where}; encoding it again loses quality", hint)
    return Sizing(base, searched, model.origin.alignment, candidates_of)


@contextmanager
def measured(
    model: Model, sizes: Sizing, calibration: Calibration, run: WriteOptions, output: Path | None = None
) -> Iterator[Search]:
    """Measure what the weights cost in each format; see `searched`. run: threads, progress, resume.

    output: the file next to which measurements are kept, until the block ends well; None: in a temporary folder. Raises
    what reading the texts raises, ModelError, FileError.
    """
    layers, threads = int(model.metadata.get(f"{model.architecture}.block_count", 1)), thread_count(run.threads)
    total, done = layers + STEPS, 0

    def tell(where: str) -> None:
        nonlocal done
        done = min(done + 1, total)
        if run.progress is not None:
            run.progress(model.nbytes * done // total, model.nbytes, where)

    windows, candidates = windows_for(model, calibration), sizes.candidates()
    net = running_on(calibration.device, model.metadata, streamed_tensors(model), threads=threads)
    texts = [text.name for text in calibration.all_texts]
    forms = {name: [form.name for form in some] for name, some in candidates.items()}
    head = {
        "gguftools": VERSION,
        "texts": windows.digest(),
        "names": texts,
        "candidates": digest_of(forms),
        "sources": fingerprint(model.origin.files, model.origin.recorded) if output else [],
    }
    if net.device is not None:
        head["device"] = net.device.name
    with ExitStack() as stack:
        place = output or Path(stack.enter_context(TemporaryDirectory(prefix="gguftools-"))) / "search"
        kept = stack.enter_context(open_encoded(place, head, run.resume and output is not None, SEARCHED))
        at_once = windows_on(net, model, windows.fitted.shape[1])
        yield searched(net, candidates, windows, at_once, texts, kept, tell)


def recipe_for(search: Search, sizes: Sizing, target: Target, plan: PlanFor) -> SearchResult:
    """Return the best recipe for a target. Raises OptionError if it is out of reach."""
    size, sizes = sizes.size_of(target), replace(sizes, base=plan(LARGE, search.matrix))  # it adds keys to the file
    sizes.check(target, *_all_limits(search, sizes, target))
    unseen = [name for name in sizes.searched if name not in search.weights_measured()]
    fixed = sizes.fixed(target) + sum(size(sizes.searched[name].nbytes) for name in unseen)
    choice = search.choose(sizes.total(target) - fixed, size)
    rules = rules_for({name: choice.formats.get(name, form) for name, form in sizes.formats().items()})
    recipe = recipe_of(target.name, rules, "found by measurement")
    used = fixed + choice.nbytes
    text = recipe_text(rules, _remarks(search, sizes, target, choice))
    return SearchResult(recipe, search.matrix, choice, text, short_of(sizes.total(target), used))


def short_of(total: int, used: int) -> str | None:
    """Return a warning if a choice is far below its target."""
    if used >= FULL * total:
        return None
    return f"{100 * (1 - used / total):.1f} % of the target are unused: no larger formats are nearer to the original"


def _all_limits(search: Search, sizes: Sizing, target: Target) -> tuple[int, int]:
    size, unseen = sizes.size_of(target), set(sizes.searched) - set(search.weights_measured())
    min_bytes, max_bytes = search.limits(size)
    rest = sum(size(sizes.searched[name].nbytes) for name in unseen)
    return min_bytes + rest, max_bytes + rest


def _remarks(search: Search, sizes: Sizing, target: Target, choice: Choice) -> list[str]:
    texts = ", ".join(search.matrix.datasets)
    windows = f"{len(search.windows.held)} windows of {search.windows.held.shape[1]} tokens held back"
    return [
        f"gguftools recipe for {sizes.described(target, sizes.total(target))}",
        f"KL divergence {choice.measured:.6f} nats a token on {windows}; {choice.predicted:.6f} predicted",
        f"measured on {texts}",
    ]
