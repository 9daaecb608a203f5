"""Store the arguments that decide an output's bytes as plain data in a manifest, and read them back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from archs.metadata import Metadata, Value
from archs.values import GgufType, value_of
from quants.errors import FileError
from quants.format import format_named
from quants.spelling import quote

from ..calibration.bounds import DEFAULT_MEMORY
from ..metadata.text import plain as plain_value
from ..quantization.options import QuantizeOptions, Splitting
from ..quantization.recipes import RECIPES, Options, Recipe

MAX_RULE = 300
MAX_RULES, MAX_LISTED = 1 << 17, 1 << 16
ESCAPE, CLASS = re.compile(r"\\."), re.compile(r"\[\^?\]?[^\]]*\]")
MAX_REPEATS = 3


@dataclass(frozen=True)
class Opening:
    """Describe how a checkpoint became a model: see `sources.of_checkpoint`."""

    pre: str | None = None
    embed_tokenizer: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"pre": self.pre, "embed_tokenizer": self.embed_tokenizer}


class Texts(NamedTuple):
    """Describe how calibration texts were read: see `calibration.texts.Calibration`.

    device: on which weights were encoded, by its name for people; "" for a processor by our own kernels, whose bytes
    are the same everywhere.
    """

    own_texts: bool
    n_ctx: int
    chunks: int
    memory: int = DEFAULT_MEMORY
    device: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, the device only if there was one."""
        return {key: value for key, value in self._asdict().items() if value != ""}


@dataclass(frozen=True)
class Parameters:
    """Hold what decided the bytes of an output besides its source, matrix and texts.

    recipe: of a quantization, or outtype: of a plain conversion, one of F32, F16, BF16, Q8_0, EXACT. The rest are
    arguments of `convert` and `quantize`. gptq: of the calibration texts.
    """

    outtype: str | None = None
    recipe: Recipe | None = None
    opening: Opening = field(default_factory=Opening)
    options: Options = field(default_factory=Options)
    splitting: Splitting = field(default_factory=Splitting)
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    prune_layers: tuple[int, ...] = ()
    override: tuple[tuple[str, Value], ...] = ()
    reserve: int = 0
    gptq: Texts | None = None
    fallback: str = "AUTO"
    rounded_grids: bool = False

    @property
    def quantize_options(self) -> QuantizeOptions:
        """Return the options that planned the output, with all permissions: what was refused then was not written."""
        formats, cut = self.options, self.splitting
        return QuantizeOptions(
            rules=formats.rules,
            pure=formats.pure,
            output_type=formats.output_type,
            token_embedding_type=formats.token_embedding_type,
            leave_output=formats.leave_output,
            prune_layers=self.prune_layers,
            override=dict(self.override),
            include_weights=self.include_weights,
            exclude_weights=self.exclude_weights,
            allow_missing_experts=True,
            keep_split=cut.keep,
            max_size=cut.max_bytes,
            max_tensors=cut.max_tensors,
            allow_requantize=True,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without default values."""
        options, cut = self.options, self.splitting
        plain: dict[str, Any] = {
            "operation": "convert" if self.recipe is None else "quantize",
            "outtype": self.outtype,
            "recipe": None if self.recipe is None else _recipe_dict(self.recipe),
            **self.opening.as_dict(),
            "pure": options.pure,
            "output_tensor_type": options.output_type,
            "token_embedding_type": options.token_embedding_type,
            "leave_output_tensor": options.leave_output,
            "rules": [list(rule) for rule in options.rules],
            "keep_split": cut.keep,
            "max_size": cut.max_bytes,
            "max_tensors": cut.max_tensors,
            "include_weights": list(self.include_weights),
            "exclude_weights": list(self.exclude_weights),
            "prune_layers": list(self.prune_layers),
            "override": {key: _value_dict(value) for key, value in self.override},
            "reserve": self.reserve,
            "gptq": None if self.gptq is None else self.gptq.as_dict(),
            "fallback": None if self.fallback == "AUTO" else self.fallback,
            "rounded_grids": self.rounded_grids,
        }
        return {key: value for key, value in plain.items() if value not in (None, False, 0, [], {})}


def _value_dict(value: Value) -> dict[str, Any]:
    return {"type": str(value.gguf_type), "value": plain_value(value)}


def _recipe_dict(recipe: Recipe) -> dict[str, Any]:
    if not recipe.rules:
        return {"name": recipe.name}
    return {
        "name": recipe.name,
        "file_type": recipe.file_type,
        "default": recipe.default,
        "rules": [list(rule) for rule in recipe.rules],
    }


def overridden_values(metadata: Metadata, override: Mapping[str, Any]) -> tuple[tuple[str, Value], ...]:
    """Return metadata to set, with types."""
    return tuple(
        (key, data if isinstance(data, Value) else value_of(key, data, metadata.type_for(key, data)))
        for key, data in override.items()
    )


def parameters_of(content: Mapping[str, Any], what: str) -> Parameters:
    """Read a manifest's parameters; what: the file, for messages. Raises FileError, FormatError."""
    read = _Reader(content, what)
    operation = read.text("operation", "")
    if operation not in ("convert", "quantize"):
        raise read.error("operation", operation, "convert or quantize")
    outtype, recipe = read.optional("outtype"), read.recipe()
    if (outtype is None) is (recipe is None) or (recipe is None) is (operation == "quantize"):
        raise read.error("recipe", content.get("recipe"), "what the operation makes")
    if outtype is not None and outtype not in ("F32", "F16", "BF16", "Q8_0", "EXACT"):
        raise read.error("outtype", outtype, "a type of conversions")
    options = Options(
        read.flag("pure"),
        read.form("output_tensor_type"),
        read.form("token_embedding_type"),
        read.flag("leave_output_tensor"),
        read.rules(content.get("rules", []), "rules"),
    )
    sizes = read.number("max_size") or None, read.number("max_tensors") or None
    return Parameters(
        outtype,
        recipe,
        Opening(read.optional("pre"), read.flag("embed_tokenizer")),
        options,
        Splitting(read.flag("keep_split"), *sizes),
        read.texts("include_weights"),
        read.texts("exclude_weights"),
        read.numbers("prune_layers"),
        read.override(),
        read.number("reserve", 1 << 30),
        read.gptq(),
        read.optional("fallback") or "AUTO",
        read.flag("rounded_grids"),
    )


class _Reader:
    """Read parameters by name, each of its required type."""

    def __init__(self, content: Mapping[str, Any], what: str) -> None:
        self.content, self.what = content, what

    def error(self, key: str, value: Any, wanted: str) -> FileError:
        shown = "missing" if value is None else quote(value if isinstance(value, (str, bool)) else str(value)[:60])
        problem = f"{self.what}: parameters.{key} is {shown}; {wanted} was expected"
        return FileError(problem, "it is not as it was written")

    def flag(self, key: str) -> bool:
        given = self.content.get(key, False)
        if not isinstance(given, bool):
            raise self.error(key, given, "true or false")
        return given

    def text(self, key: str, default: str | None = None, value: Any = None) -> str:
        given = self.content.get(key, default) if value is None else value
        if not isinstance(given, str) or len(given) > 1000:
            raise self.error(key, given, "a text")
        return given

    def optional(self, key: str) -> str | None:
        return None if self.content.get(key) is None else self.text(key)

    def form(self, key: str) -> str | None:
        given = self.optional(key)
        return None if given is None else format_named(given).name

    def number(self, key: str, limit: int = 1 << 60, value: Any = None) -> int:
        given = self.content.get(key, 0) if value is None else value
        if type(given) is not int or not 0 <= given <= limit:
            raise self.error(key, given, f"a whole number from 0 to {limit}")
        return given

    def listed(self, key: str) -> Sequence[Any]:
        given = self.content.get(key, [])
        if not isinstance(given, list) or len(given) > MAX_LISTED:
            raise self.error(key, given, "a list")
        return given

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self.text(key, value=each if isinstance(each, str) else [each]) for each in self.listed(key))

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(self.number(key, 1 << 20, [each] if each is None else each) for each in self.listed(key))

    def rules(self, given: Any, key: str) -> tuple[tuple[str, str], ...]:
        if not isinstance(given, list) or len(given) > MAX_RULES:
            raise self.error(key, given, "a list of rules")
        rules = []
        for rule in given:
            if not isinstance(rule, list) or len(rule) != 2 or not all(isinstance(each, str) for each in rule):
                raise self.error(key, rule, "a regular expression and a format")
            if not is_quick(rule[0]):
                raise self.error(key, rule[0], "a regular expression that cannot take long")
            rules.append((rule[0], format_named(rule[1]).name))
        return tuple(rules)

    def recipe(self) -> Recipe | None:
        given = self.content.get("recipe")
        if given is None:
            return None
        if not isinstance(given, dict) or not isinstance(given.get("name"), str) or len(given["name"]) > 255:
            raise self.error("recipe", given, "an object with a name")
        if "rules" not in given:
            if given["name"] not in RECIPES:
                raise self.error("recipe", given["name"], "a recipe that this version has")
            return RECIPES[given["name"]]
        rules, number = self.rules(given["rules"], "recipe"), given.get("file_type")
        default = format_named(self.text("recipe", value=given.get("default") or "")).name
        known = None if number is None else self.number("recipe", 1 << 16, number)
        return Recipe(given["name"], known, default, 0.0, "", rules=rules)

    def override(self) -> tuple[tuple[str, Value], ...]:
        given = self.content.get("override", {})
        if not isinstance(given, dict):
            raise self.error("override", given, "an object")
        pairs = []
        for key, each in given.items():
            if not isinstance(each, dict) or set(each) != {"type", "value"} or not isinstance(each["type"], str):
                raise self.error("override", key, "a key with its type and value")
            pairs.append((key, value_of(key, each["value"], GgufType.named(each["type"]))))
        return tuple(pairs)

    def gptq(self) -> Texts | None:
        given = self.content.get("gptq")
        if given is None:
            return None
        if not isinstance(given, dict) or not isinstance(given.get("own_texts"), bool):
            raise self.error("gptq", given, "an object with own_texts, n_ctx, chunks and memory")
        n_ctx, chunks = (self.number("gptq", 1 << 30, given.get(key) or -1) for key in ("n_ctx", "chunks"))
        memory = self.number("gptq", 1 << 60, given.get("memory", DEFAULT_MEMORY) or -1)
        device = given.get("device", "")
        if not isinstance(device, str) or len(device) > MAX_RULE or not device.isprintable():
            raise self.error("gptq", device, "the name of a device")
        return Texts(given["own_texts"], n_ctx, chunks, memory, device)


def is_quick(pattern: str) -> bool:
    """Return True for a regular expression that is fast on every name: no repeated group, and few repeats."""
    if len(pattern) > MAX_RULE:
        return False
    plain = CLASS.sub("x", ESCAPE.sub("x", pattern))
    return not re.search(r"\)[*+{]", plain) and sum(map(plain.count, "*+{")) <= MAX_REPEATS
