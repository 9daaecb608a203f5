"""Plan a release: which files it will have, how large they are, and how they are called."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quants.errors import OptionError

from ...calibration.target import MIN_BITS
from ...conversion.quantize import quantize, recipe_path
from ...models.left_out import parts_apart
from ...models.model import Model
from ...quantization.recipe_texts import recipe_or_file
from ...quantization.recipes import RECIPES
from ...writing.cost_model import CostModel
from ...writing.options import WriteOptions
from ...writing.resume import fingerprint
from ..names import PublishedName, problems, safe_name
from .settings import NO_IMATRIX, ReleaseOptions

FLOATS, HUB = ("F32", "F16", "BF16"), "hf://"
MIX = "MIX"  # after the label of a searched recipe: the hub shows it as part of the label
LIKE = (
    *("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    *("IQ2_M", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"),
)
DISK_RATE = 1 << 30  # bytes a second, to say roughly how long encoding takes


@dataclass(frozen=True)
class PlannedFile:
    """A file of a release. path: in the folder; recipe: as named in the settings; nbytes: as planned; sharded: it is a
    split set in a folder of its own. target: bytes, of one whose recipe is searched for.
    """

    path: str
    recipe: str
    nbytes: int
    sharded: bool = False
    target: int = 0

    @property
    def texts(self) -> list[str]:
        """Return the path of the recipe's text, of one that is searched for."""
        return [recipe_path(Path(self.path)).as_posix()] if self.target else []


@dataclass(frozen=True)
class ReleasePlan:
    """What a release makes of a source.

    name: of the model in file names. model: the open source. outtype: of its weights. key: what changes with the
    source. parts: of a checkpoint, those with files of their own: mmproj, mtp. seconds: of encoding, on one processor.
    warnings: what cannot be made, and
    what the hub will get wrong about names.
    """

    name: str
    model: Model
    folder: Path
    outtype: str
    key: Sequence[Any]
    files: list[PlannedFile]
    parts: list[Literal["mmproj", "mtp"]]
    seconds: float
    warnings: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all model files."""
        return sum(each.nbytes for each in self.files)

    @property
    def commit(self) -> str:
        """Return the commit of a source on the hub; "" for another."""
        return next((each[1] for each in self.model.origin.recorded if each[0].startswith(HUB)), "")

    def as_dict(self) -> dict[str, Any]:
        files = [{"file": each.path, "recipe": each.recipe, "size_bytes": each.nbytes} for each in self.files]
        return {
            "name": self.name,
            "outtype": self.outtype,
            "files": files,
            "parts": list(self.parts),
            "size_bytes": self.nbytes,
        }


def plan_release(model: Model, folder: Path, settings: ReleaseOptions) -> ReleasePlan:
    """Plan a release of an open model.

    Raises OptionError for a quantized model, for recipes that cannot be made of it, and for two of one name;
    FormatError.
    """
    outtype = _outtype(model)
    name = safe_name(settings.name or _model_name(model))
    wanted = list(dict.fromkeys(outtype if each in FLOATS else each for each in settings.wanted))
    matrix = folder / PublishedName(name, "", "imatrix").file
    has_matrix = settings.imatrix != NO_IMATRIX and (settings.does("imatrix") or matrix.is_file())
    without = [] if has_matrix else [each for each in wanted if _needs_matrix(each)]
    warnings = [f"without an importance matrix {', '.join(without)} cannot be made"] if without else []
    made = [each for each in wanted if each not in without]
    files, seconds = _planned(model, name, made, settings.split_max_size, warnings)
    files += [_target(model, name, each, settings.split_max_size) for each in settings.target_sizes]
    if len({each.path for each in files}) < len(files):
        raise OptionError("two files of one size would be searched for", "leave one out")
    warnings += [problem for each in files for problem in problems(each.path)]
    recorded = [(_repository(each[0]), *each[1:]) for each in model.origin.recorded]
    key = fingerprint(model.files, recorded)
    return ReleasePlan(name, model, folder, outtype, key, files, parts_apart(model.origin.warnings), seconds, warnings)


def in_passes(files: Sequence[PlannedFile]) -> list[list[PlannedFile]]:
    """Return files in the groups that are written in one pass: single files, sharded ones, each searched one."""
    stock = [[each for each in files if not each.target and each.sharded == sharded] for sharded in (False, True)]
    return [group for group in (*stock, *([each] for each in files if each.target)) if group]


def is_there(path: Path) -> bool:
    """Return whether a file is there, or shards of it."""
    return path.exists() or (path.suffix == ".gguf" and any(path.parent.glob(f"{path.stem}-*-of-*.gguf")))


def _repository(source: str) -> str:
    """Return hf://ORG/MODEL without its revision: the commit is recorded, too."""
    return source.partition("@")[0].rstrip("/") if source.startswith(HUB) else source


def _model_name(model: Model) -> str:
    """Return what files are called after: the folder, repository or file without its type."""
    from ...quantization.outputs import MODEL_SUFFIX

    path = model.path
    stem = path.stem if path.suffix == ".gguf" else path.resolve().name if path.is_dir() else path.name
    return MODEL_SUFFIX.sub("", stem) or stem


def _outtype(model: Model) -> str:
    """Return the type of the unquantized file. Raises OptionError for a file that is quantized."""
    if model.origin.outtype:
        return model.origin.outtype
    formats = {tensor.format.name for tensor in model.tensors.values() if len(tensor.shape) > 1}
    plain = formats & set(FLOATS)
    if formats - plain:
        problem = f"{model.path} has weights in {', '.join(sorted(formats - plain))}"
        raise OptionError(problem, "a release is made from the unquantized model: F16, BF16 or F32, or the checkpoint")
    return _most(model, plain)


def _most(model: Model, formats: set[str]) -> str:
    """Return the format that most bytes are in."""
    sizes = {name: sum(t.nbytes for t in model.tensors.values() if t.format.name == name) for name in formats}
    return max(sizes, key=lambda name: sizes[name], default="F32")


def _needs_matrix(recipe: str) -> bool:
    return "needs an importance matrix" in recipe_or_file(recipe)[0].description


def _planned(
    model: Model, name: str, recipes: Sequence[str], split: int, warnings: list[str]
) -> tuple[list[PlannedFile], float]:
    """Plan the files of recipes: their bytes, and the seconds of encoding them. warnings: gets one for files that are
    alike, as fallbacks make them.
    """
    own = [safe_name(recipe_or_file(each)[0].name) for each in recipes]
    if twice := [each for each, count in Counter(own).items() if count > 1]:
        raise OptionError(f"two files would be called {PublishedName(name, twice[0]).file}", "rename a recipe")
    if not recipes:
        return [], 0.0
    write = WriteOptions(cost_model=CostModel(rate=DISK_RATE, latency=0.0))
    report = quantize(model, recipes, [f"./{each}.gguf" for each in own], write=write)
    files, types = [], dict[tuple[str, ...], str]()
    for recipe, type, output in zip(recipes, own, report.outputs, strict=True):
        like = types.setdefault(tuple(each.format for each in output.tensors), type)
        warnings += [f"{type} has the same formats as {like}: rows of this model do not fit others"] * (like != type)
        path, sharded = _place(name, type, output.nbytes, split)
        files.append(PlannedFile(path, recipe, output.nbytes, sharded))
    return files, report.work.encode_seconds if report.work else 0.0


def _target(model: Model, name: str, nbytes: int, split: int) -> PlannedFile:
    """Plan a file whose recipe is searched for, named after its size and the recipe of the nearest bits per weight."""
    values = sum(tensor.size for tensor in model.tensors.values())
    lowest = int(MIN_BITS / 8 * values)
    if not lowest <= nbytes < model.nbytes:
        what = f"a target of {nbytes:,} bytes cannot be reached from a model of {model.nbytes:,}"
        raise OptionError(what, f"{lowest:,} bytes are {MIN_BITS:g} bits per weight, the lowest that is tried")
    like = min(LIKE, key=lambda each: abs(RECIPES[each].typical_bits - 8 * nbytes / values))
    unit = ("GB", 1e9) if nbytes >= 1e9 else ("MB", 1e6)
    own = f"{nbytes / unit[1]:.6g}{unit[0]}-{like}_{MIX}"
    path, sharded = _place(name, own, nbytes, split)
    return PlannedFile(path, f"searched for {nbytes:,} bytes", nbytes, sharded, nbytes)


def _place(name: str, type: str, nbytes: int, split: int) -> tuple[str, bool]:
    file = PublishedName(name, type).file
    sharded = bool(split) and nbytes > split
    return f"{type}/{file}" if sharded else file, sharded
