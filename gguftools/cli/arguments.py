"""Parse the texts of arguments and options; OptionError says what is wrong with one."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from archs.bounded_files import METADATA_JSON, RULES, VALUE, read_text
from archs.diffusion.spec import READERS, Reader
from archs.metadata import Value, ValueType
from archs.small_files import parse_json
from quants import format_named
from quants.errors import FileError, OptionError
from quants.spelling import quote

from ..inspection.audits.finding import SEVERITIES, Severity
from ..metadata.text import ArgumentText
from ..writing.cost_model import DEFAULT_RATE, CostModel, Prices
from ..writing.work_plan import read_prices
from .calls import GATHERED

FILE_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
SIZE = re.compile(r"(\d+)\s*([KMGT]?)i?B?", re.IGNORECASE)
RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
OVERRIDE = re.compile(r"([^=]+)=(int|float|bool|str):(.*)", re.DOTALL)
OVERRIDES: Mapping[str, tuple[Callable[[str], Any], str, ValueType]] = {  # parser, description of a wrong value, type
    "int": (int, "not an int", ValueType.INT64),
    "float": (float, "not a float", ValueType.FLOAT32),
    "bool": (lambda text: {"true": True, "false": False}[text.lower()], "neither true nor false", ValueType.BOOL),
    "str": (str, "", ValueType.STRING),
}
T = TypeVar("T")


def parse_size(text: str) -> int:
    """Parse a size such as `500M` or `2G`, in bytes: units are decimal."""
    match = SIZE.fullmatch(text.strip())
    if not match or not int(match[1]):
        raise OptionError(f"{text!r} is not a size", hint="for example 500M or 2G")
    thousands: int = 1000 ** " KMGT".index(match[2].upper() or " ")
    return int(match[1]) * thousands


def parse_memory(text: str) -> int:
    """Parse an amount of memory such as `24G`, in bytes: units are binary, as those of cards are."""
    match = SIZE.fullmatch(text.strip())
    if not match or not int(match[1]):
        raise OptionError(f"{text!r} is not a size", hint="for example 512M or 24G")
    binary: int = 1024 ** " KMGT".index(match[2].upper() or " ")
    return int(match[1]) * binary


def parse_margin(text: str) -> int:
    """Parse an amount of memory to leave free, which may be 0."""
    return 0 if text.strip() == "0" else parse_memory(text)


def parse_shard_size(text: str) -> int:
    """Parse a size with its unit, as llama-gguf-split wants it: a number alone would hardly mean bytes."""
    if text.strip().isdecimal() and int(text):
        number = text.strip()
        raise OptionError(f"{text!r} has no unit", hint=f"{number}M, {number}G, or {number}B for bytes")
    return parse_size(text)


def parse_file_size(text: str) -> int:
    """Parse a size such as `4.2G`, in bytes: units are decimal."""
    match = FILE_SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if not size:
        raise OptionError(f"{text!r} is not a size", hint="for example 900M or 4.2G")
    return size


def parse_bits(text: str) -> tuple[float, ...]:
    """Parse bits per weight such as `3.5,4,4.5`."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise OptionError(f"{text!r} is not a list of bits per weight", hint="for example 3.5,4,4.5") from None


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Parse temperatures such as `0,0.8,1`."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise OptionError(f"{text!r} is not a list of temperatures", hint="for example 0,0.8,1") from None


def parse_ratio(text: str) -> float | str:
    """Parse a cost ratio such as `0.1`, or how it is to be found."""
    if text in ("timed", "bytes"):
        return text
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{text!r} is not a cost ratio", hint="give a number, timed or bytes") from None


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse layer numbers such as `3,5-7`."""
    layers: list[int] = []
    for part in text.split(","):
        numbers = RANGE.fullmatch(part.strip())
        if not numbers or int(numbers[2] or numbers[1]) < int(numbers[1]):
            raise OptionError(f"{text!r} is not a list of layers", hint="for example 3,5-7")
        layers += range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1)
    return tuple(dict.fromkeys(layers))


def parse_donor(text: str) -> tuple[Path, tuple[str, ...]]:
    """Parse DONOR PATTERN…, the words after --from, which `usage.gathered` joined."""
    path, *patterns = text.split(GATHERED)
    if not path or not patterns:
        problem = f"--from {path!r} names nothing to take"
        raise OptionError(problem, hint="--from DONOR PATTERN…, for example --from donor.gguf mtp")
    return Path(path), tuple(patterns)


def parse_merge(text: str) -> tuple[Path, float]:
    """Parse ADAPTER or ADAPTER=SCALE; one whose name has a "=" in it may be given without a scale."""
    path, _, scale = text.rpartition("=")
    if not path or Path(text).exists():
        return Path(text), 1.0
    try:
        number = float(scale)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{scale!r} in {text!r} is not a finite number", hint="for example my-adapter=0.5")
    return Path(path), number


def parse_rule(text: str) -> tuple[str, str]:
    """Parse a rule `REGEX=TYPE`. Raises FormatError for an unknown type."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name.strip():
        raise OptionError(f"tensor rule {text!r} is not REGEX=TYPE", hint="for example 'attn_v=Q8_0'")
    return pattern.strip(), format_named(name.strip()).name


def read_rules(path: Path) -> tuple[tuple[str, str], ...]:
    """Return rules from a file: one `REGEX=TYPE` a line, `#` begins a comment. Raises FileError."""
    stripped = (line.strip() for line in read_text(path, RULES).splitlines())
    return tuple(parse_rule(line) for line in stripped if line and not line.startswith("#"))


def planned_terms(workers: int | None, rate: int | None, prices: Path | None) -> CostModel:
    """Return the cost model of a planned run. Raises OptionError for what is no price table."""
    given = read_prices(prices) if prices else Prices()
    return CostModel(workers or 1, rate or DEFAULT_RATE, prices=given)


def parse_override(text: str) -> tuple[str, Value]:
    """Parse an override `KEY=TYPE:VALUE` (int, float, bool, str)."""
    match = OVERRIDE.fullmatch(text)
    if not match:
        raise OptionError(f"override {text!r} is not KEY=TYPE:VALUE", hint="TYPE is int, float, bool or str")
    key, name, raw = match.groups()
    read, wrong, type = OVERRIDES[name]
    try:
        data = read(raw)
    except (ValueError, KeyError):
        raise OptionError(f"override {text!r}: {raw!r} is {wrong}") from None
    return key, Value(data, ValueType.UINT32 if name == "int" and 0 <= data < 1 << 32 else type)


def severity_named(name: str) -> Severity:
    """Return a severity of an audit's findings."""
    for severity in SEVERITIES:
        if severity == name.lower():
            return severity
    raise OptionError(f"{name!r} is not a severity", hint=f"choose one of {', '.join(SEVERITIES)}")


def reader_named(name: str) -> Reader:
    """Return a program that reads image and video models."""
    for reader, title in READERS.items():
        if name.lower() in (reader, title.lower()):
            return reader
    raise OptionError(f"{name!r} is not a program known here", hint=f"choose one of {', '.join(READERS)}")


def split_pair(text: str, what: str) -> tuple[str, str]:
    """Split KEY=VALUE in two."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise OptionError(f"{text!r} is not of the form {what}")
    return key, value


def once(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the pairs by their first parts, none of which is given twice."""
    by_name: dict[str, T] = {}
    for name, value in pairs:
        if name in by_name:
            raise OptionError(f"{name!r} is given twice: {quote(by_name[name])} and {quote(value)}")
        by_name[name] = value
    return by_name


def parse_assignment(text: str) -> tuple[str, ArgumentText]:
    """Parse KEY=VALUE; `KEY=@file` takes the file's text, `@@` begins a value with one @. Raises FileError, too."""
    key, value = split_pair(text, "KEY=VALUE")
    return key, ArgumentText(text_or_file(value))


def text_or_file(value: str) -> str:
    """Return the text itself, or for `@file` what the file holds."""
    if value.startswith("@@"):
        return value[1:]
    return read_text(Path(value[1:]), VALUE) if value.startswith("@") else value


def named_files(texts: Iterable[str]) -> list[Path]:
    """Return the files that `KEY=@FILE` and `@FILE` name."""
    values = (text if text.startswith("@") else text.partition("=")[2] for text in texts)
    return [Path(value[1:]) for value in values if value.startswith("@")]


def read_json_values(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and types of a JSON object; values are plain or as `show` prints them. Raises FileError, too."""
    try:
        given = parse_json(read_text(path, METADATA_JSON))
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("metadata"), dict):
        given = given["metadata"]
    if not isinstance(given, dict):
        raise FileError(f"{path} does not contain a JSON object of keys and values")
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for key, entry in given.items():
        if isinstance(entry, dict):
            if "value" not in entry or set(entry) - {"type", "value"}:
                fields = ", ".join(map(repr, entry))
                raise OptionError(f"{path}: {key!r} has {fields}; expected a plain value, or 'type' and 'value'")
            if "type" in entry:
                types[key] = entry["type"]
            entry = entry["value"]
        values[key] = entry
    return values, types
