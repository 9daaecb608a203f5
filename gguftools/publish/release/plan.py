"""Plan a release: which files it will have, how large they are, and how they are called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quants.errors import OptionError

from ...conversion.quantize import quantize
from ...models.left_out import parts_apart
from ...models.model import Model
from ...quantization.recipe_texts import recipe_or_file
from ...writing.cost_model import CostModel
from ...writing.options import WriteOptions
from ...writing.resume import fingerprint
from ..names import PublishedName, safe_name
from .settings import NO_IMATRIX, ReleaseOptions

FLOATS = ("F32", "F16", "BF16")
DISK_RATE = 1 << 30  # bytes a second, to say roughly how long encoding takes


@dataclass(frozen=True)
class PlannedFile:
    """A file of a release. path: in the folder; recipe: as named in the settings; nbytes: as planned; sharded: it is a
    split set in a folder of its own.
    """

    path: str
    recipe: str
    nbytes: int
    sharded: bool = False


@dataclass(frozen=True)
class ReleasePlan:
    """What a release makes of a source.

    name: of the model in file names. model: the open source. outtype: of its weights. key: what changes with the
    source. parts: of a checkpoint, those with files of their own: mmproj, mtp. seconds: of encoding, roughly, on one
    processor of this machine. warnings: what cannot be made, and why.
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

    def as_dict(self) -> dict[str, Any]:
        files = [{"file": each.path, "recipe": each.recipe, "size_bytes": each.nbytes} for each in self.files]
        return {
            "name": self.name,
            "outtype": self.outtype,
            "files": files,
            "parts": list(self.parts),
            "size_bytes": self.nbytes,
            "encode_seconds": self.seconds,
        }


def plan_release(model: Model, folder: Path, settings: ReleaseOptions) -> ReleasePlan:
    """Plan a release of an open model.

    Raises OptionError for a quantized model, and for recipes that cannot be made of it; FormatError.
    """
    outtype = _outtype(model)
    name = safe_name(settings.name or _model_name(model))
    wanted = list(dict.fromkeys(outtype if each in FLOATS else each for each in settings.wanted))
    matrix = folder / PublishedName(name, "", "imatrix").file
    has_matrix = settings.imatrix != NO_IMATRIX and (settings.does("imatrix") or matrix.is_file())
    without = [] if has_matrix else [each for each in wanted if _needs_matrix(each)]
    planned = _sizes(model, [each for each in wanted if each not in without])
    return ReleasePlan(
        name,
        model,
        folder,
        outtype,
        fingerprint(model.files, model.origin.recorded),
        [_named(name, recipe, nbytes, settings.split_max_size) for recipe, (nbytes, _) in planned.items()],
        parts_apart(model.origin.warnings),
        sum(seconds for _, seconds in planned.values()),
        [f"without an importance matrix {', '.join(without)} cannot be made"] if without else [],
    )


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


def _sizes(model: Model, recipes: Sequence[str]) -> Mapping[str, tuple[int, float]]:
    """Return the bytes of each recipe's file, and the seconds of encoding it."""
    sizes: dict[str, tuple[int, float]] = {}
    for recipe in recipes:
        write = WriteOptions(cost_model=CostModel(rate=DISK_RATE, latency=0.0))
        report = quantize(model, [recipe], f"./{recipe_or_file(recipe)[0].name}.gguf", write=write)
        sizes[recipe] = report.outputs[0].nbytes, report.work.encode_seconds if report.work else 0.0
    return sizes


def _named(name: str, recipe: str, nbytes: int, split: int) -> PlannedFile:
    own = recipe_or_file(recipe)[0].name
    file = PublishedName(name, own).file
    sharded = bool(split) and nbytes > split
    return PlannedFile(f"{own}/{file}" if sharded else file, recipe, nbytes, sharded)
