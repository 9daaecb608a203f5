"""Settings of a release: in Python, and as a TOML file to run it again."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from archs.bounded_files import SETTINGS_TEXT, read_text
from quants.arguments import PathLike, as_count, as_path, wrong
from quants.errors import FileError, OptionError
from quants.spelling import did_you_mean

from ...quantization.recipes import recipe_named
from ..cards.card import CardOptions
from .local_values import with_local_paths

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LADDERS: Mapping[str, tuple[str, ...]] = {
    "small": ("Q8_0", "Q6_K", "Q4_K_M"),
    "standard": ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "IQ4_XS", "Q3_K_M", "IQ3_M", "Q2_K"),
    "full": (
        *("BF16", "Q8_0", "Q6_K_L", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS"),
        *("Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_XS", "IQ3_XXS", "Q2_K_L", "Q2_K", "Q2_K_S"),
        *("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    ),
}
PARTS = ("mmproj", "mtp", "imatrix", "quantize", "measure", "report", "sums", "card")
SPLIT = 48 * 10**9  # bytes of a shard: what publishers split at, and the hub's clients load well
NO_IMATRIX, OWN_TEXTS = "none", "own"
MATRIX_SUFFIXES = (".gguf", ".dat", ".imatrix")


@dataclass(frozen=True)
class ReleaseOptions:
    """What a release makes, and how.

    name: of the model in file names; "" for the source's. ladder: a name of LADDERS; recipes: more of them, or these
    alone if ladder is "". imatrix: a file of one, OWN_TEXTS to measure one on the package's texts, a text to measure
    it on, or NO_IMATRIX. imatrix_chunks: windows of each text at most. gptq: texts for GPTQ calibration. target_sizes:
    bytes of files whose recipes are searched for. texts: to measure divergence on; chunks: windows of each at most;
    without any, the package's. split_max_size: bytes of a shard, 0 to split nothing. only, skip: PARTS. manifests: also
    write how each file was made. base_model, repository, quantized_by: as of `CardOptions`. work: a folder for what is
    fetched from the hub, "" for FOLDER/.release; keep_source: leave it there.

    Raises OptionError for a value that cannot be.
    """

    name: str = ""
    ladder: str = "standard"
    recipes: Sequence[str] = ()
    imatrix: str = OWN_TEXTS
    imatrix_chunks: int = 128
    gptq: Sequence[str] = ()
    target_sizes: Sequence[int] = ()
    texts: Sequence[str] = ()
    chunks: int = 64
    split_max_size: int = SPLIT
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    manifests: bool = True
    base_model: str = ""
    repository: str = ""
    quantized_by: str = ""
    work: str = ""
    keep_source: bool = False

    def __post_init__(self) -> None:
        if self.ladder and self.ladder not in LADDERS:
            hint = did_you_mean(self.ladder, LADDERS, f"they are {', '.join(LADDERS)}")
            raise OptionError(f"there is no ladder {self.ladder!r}", hint)
        for recipe in self.recipes:
            if not Path(recipe).is_file():
                recipe_named(recipe)
        for part in (*self.only, *self.skip):
            if part not in PARTS:
                hint = did_you_mean(part, PARTS, f"parts are {', '.join(PARTS)}")
                raise OptionError(f"there is no part {part!r}", hint)
        if self.only and self.skip:
            raise OptionError("only and skip exclude each other", "leave one of them out")
        CardOptions(self.base_model or None, self.repository or None)
        as_count(self.imatrix_chunks, "imatrix_chunks", 1)
        as_count(self.chunks, "chunks", 1)
        as_count(self.split_max_size, "split_max_size", 0)
        for size in self.target_sizes:
            as_count(size, "a target size", 1)

    @property
    def wanted(self) -> list[str]:
        """Return the recipes to make, each once, in the order of the ladder."""
        return list(dict.fromkeys([*LADDERS.get(self.ladder, ()), *map(_stem, self.recipes)]))

    def does(self, part: str) -> bool:
        """Return whether a part is made."""
        return part in self.only if self.only else part not in self.skip

    def toml(self, source: str) -> str:
        """Return these settings as a TOML file; source: what the release is made from."""
        return settings_text(source, vars(self))


def settings_text(source: str, values: Mapping[str, Any], remarks: Sequence[str] = ()) -> str:
    """Return settings as a TOML file, without those that have their default. remarks: lines at its start."""
    lines = ["# Settings of `gguftools release`; run it again with --settings.", *(f"# {each}" for each in remarks)]
    lines.append(f"source = {_quoted(source)}")
    for each in fields(ReleaseOptions):
        value = values[each.name]
        if value != each.default:
            several = isinstance(value, (tuple, list))
            lines.append(f"{each.name} = {_quoted(list(value) if several else value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    """Return a value of TOML, whose texts are those of JSON but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_on_hub(source: str) -> bool:
    """Return whether a source is a repository of the hub, which is fetched."""
    return source.startswith("hf://") and source.count("/") == 3


def is_matrix(given: str) -> bool:
    """Return whether `imatrix` is given as a matrix, and not as a text to measure one on."""
    return given not in (NO_IMATRIX, OWN_TEXTS) and Path(given).suffix in MATRIX_SUFFIXES


def _stem(recipe: str) -> str:
    """Return a recipe's name: of a file, its path as given."""
    return recipe if Path(recipe).is_file() else recipe_named(recipe).name


def read_settings(path: PathLike) -> tuple[str | None, ReleaseOptions]:
    """Return the source and the settings of a TOML file; those of a release name local files as it was made from.

    Raises FileError for what is none, and names unknown keys.
    """
    file = as_path(path, "the settings")
    try:
        values = tomllib.loads(read_text(file, SETTINGS_TEXT))
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{file} is no TOML: {error}", "NAME = VALUE on each line") from None
    values = with_local_paths(values, file.parent)
    source = values.pop("source", None)
    if source is not None and not isinstance(source, str):
        raise FileError(f"{file}: source is {source!r}; a text was expected")
    try:
        return source, settings_of(values)
    except OptionError as error:
        raise FileError(f"{file}: {error}", error.hint) from error


def settings_of(values: Mapping[str, Any], base: ReleaseOptions = ReleaseOptions()) -> ReleaseOptions:
    """Return settings with these values. Raises OptionError for an unknown name or a value of another type."""
    types = {each.name: type(getattr(ReleaseOptions(), each.name)) for each in fields(ReleaseOptions)}
    for name, value in values.items():
        if name not in types:
            raise OptionError(
                f"there is no setting {name!r}", did_you_mean(name, types, f"they are {', '.join(types)}")
            )
        expected = (list, tuple) if types[name] is tuple else types[name]
        if not isinstance(value, expected) or (isinstance(value, bool) and types[name] is not bool):
            raise wrong(
                name, value, {tuple: "a list", bool: "true or false", int: "a number"}.get(types[name], "a text")
            )
    given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
    return replace(base, **given)
