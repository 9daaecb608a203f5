"""Every checkpoint of the zoo through the whole road: converted from its folder alone, compared, run.

    python -m tests.zoo [ENTRY …]      a table; exit code 1 where something is wrong and no reason is known

Columns: keys and tensors of the four output types against the reference's converter; largest
difference of the logits to the original model's, in units of their standard deviation, at once and token by token;
tokenizer from the file's metadata against the model's own.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import GGUFValueType as ValueType

import gguftools
from gguftools.models.sources import of_checkpoint
from runtime.kv_cache import KVCache
from runtime.model import RunningModel
from tests import zoo_build, zoo_check
from tests.conftest import SHARED

ZOO = SHARED / "zoo"
NUMBERS = dict(zip(ValueType, "BbHhIif?--Qqd", strict=False))
LONG = 64  # longer arrays are a digest
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
TOLERANCE = 1e-3
CLOSE = 2e-5  # what a correct float32 implementation reaches
ROUNDED = 5e-4  # token by token, where quantized weights are multiplied with inputs of 16 bits

# Where ours differs, and why.
REASONS = {
    ("gpt2-ninner", "files"): "feed_forward_length: the reference writes 4 * n_embd whatever n_inner is",
    ("falcon-rw-style", "once"): "the truth was made by eager attention, which adds ALiBi twice; transformers' default "
    "and the published code add it once, as we do (equal to 3e-6)",
}
REASONS["falcon-rw-style", "cached"] = REASONS["falcon-rw-style", "once"]


@dataclass(frozen=True)
class Examined:
    """What was found of an entry: "" in a column is all right."""

    entry: str
    files: str
    once: float
    cached: float | None
    tokenizer: str
    cached_bound: float = CLOSE

    @property
    def unexplained(self) -> list[str]:
        wrong = {
            "files": bool(self.files),
            "once": not self.once <= TOLERANCE,
            "cached": self.cached is not None and not self.cached <= TOLERANCE,
            "tokenizer": bool(self.tokenizer),
        }
        return [column for column, bad in wrong.items() if bad and (self.entry, column) not in REASONS]


def gguf_to_json(path: Path) -> dict[str, Any]:
    """Return a file's keys and tensors in the form of ref.json."""
    data = path.read_bytes()
    _, _, tensor_count, key_count = struct.unpack_from("<IIQQ", data)
    place, keys, infos = 24, {}, []
    for _ in range(key_count):
        name, place = text_at(data, place)
        keys[name], place = value_at(data, place + 4, ValueType(struct.unpack_from("<I", data, place)[0]))
    for _ in range(tensor_count):
        name, place = text_at(data, place)
        (rank,) = struct.unpack_from("<I", data, place)
        *shape, kind, offset = struct.unpack_from(f"<{rank}QIQ", data, place + 4)
        place += 4 + 8 * rank + 12
        infos.append((name, shape, GGMLQuantizationType(kind), offset))
    alignment = keys.get("general.alignment", {"value": 32})["value"]
    start = -(-place // alignment) * alignment
    return {"kv": keys, "tensors": [tensor_to_json(data, start + offset, *info) for *info, offset in infos]}


def tensor_to_json(data: bytes, start: int, name: str, shape: list[int], kind: GGMLQuantizationType) -> dict[str, Any]:
    block, size = GGML_QUANT_SIZES[kind]
    stored = data[start : start + math.prod(shape) // block * size]
    return {"name": name, "shape": shape, "type": kind.name, "sha256": hashlib.sha256(stored).hexdigest()}


def text_at(data: bytes, place: int) -> tuple[str, int]:
    end = place + 8 + struct.unpack_from("<Q", data, place)[0]
    return data[place + 8 : end].decode("utf-8", "backslashreplace"), end


def value_at(data: bytes, place: int, kind: ValueType) -> tuple[dict[str, Any], int]:
    """A key's value as JSON, and where it ends."""
    if kind is not ValueType.ARRAY:
        value, end = text_at(data, place) if kind is ValueType.STRING else number_at(data, place, kind)
        return {"type": kind.name, "value": value}, end
    element, count = struct.unpack_from("<IQ", data, place)
    begin = place = place + 12
    item = ValueType(element)
    found = {"type": "ARRAY", "elem": item.name if count else None, "len": count}
    if count > LONG:
        end = end_of_items(data, place, item, count)
        return {**found, "sha256": hashlib.sha256(data[begin:end]).hexdigest()}, end
    values = []
    for _ in range(count):
        value, place = text_at(data, place) if item is ValueType.STRING else number_at(data, place, item)
        values.append(value)
    return {**found, "value": values}, place


def end_of_items(data: bytes, place: int, item: ValueType, count: int) -> int:
    if item is not ValueType.STRING:
        return place + count * struct.calcsize("<" + NUMBERS[item])
    length = struct.Struct("<Q").unpack_from
    for _ in range(count):
        place += 8 + length(data, place)[0]
    return place


def number_at(data: bytes, place: int, kind: ValueType) -> tuple[Any, int]:
    code = "<" + NUMBERS[kind]
    return struct.unpack_from(code, data, place)[0], place + struct.calcsize(code)


def entries() -> list[str]:
    return sorted(path.parent.name for path in ZOO.glob("*/spec.json"))


def examine(entry: str, work: Path, outtypes: Sequence[str] = OUTTYPES) -> Examined:
    """Build the checkpoint, convert it to the types (F32 among them), compare, run."""
    zoo_build.build(ZOO, entry, work / entry)
    different: list[str] = []
    with planned_once():
        for outtype in outtypes:
            file = work / f"{outtype}.gguf"
            gguftools.convert(work / entry, file, outtype)
            different += zoo_check.differences(ZOO, entry, gguf_to_json(file), outtype)
    model = gguftools.load(work / "f32.gguf")
    once, cached = logit_errors(model, np.load(ZOO / entry / "logits.npz"))
    tokenizer = tokenizer_error(entry, work / "f32.gguf")
    return Examined(entry, "; ".join(different), once, cached, tokenizer, closeness(model))


@contextmanager
def planned_once() -> Iterator[None]:
    """Let conversions of a checkpoint to several types share its plan, which types have no part in, and which takes
    longer than writing a small file.
    """
    plans: dict[str, Any] = {}

    def planned(*arguments: Any, **options: Any) -> Any:
        key = repr((arguments, options))
        if key not in plans:
            plans[key] = of_checkpoint(*arguments, **options)
        return plans[key]

    with mock.patch("gguftools.conversion.convert.of_checkpoint", planned):
        yield


def logit_errors(model: RunningModel, truth: Any) -> tuple[float, float | None]:
    """Largest |difference| / std over both prompts, at once and (where the model can) token by token; of as many last
    columns as the truth has.
    """
    found: list[list[float]] = [[], []]
    for prompt in "01":
        wanted = truth[f"logits{prompt}"].astype(np.float64)
        for column, logits in enumerate(runs(model, truth[f"ids{prompt}"], truth.get(f"dec{prompt}"))):
            error = np.abs(logits[-len(wanted) :, -wanted.shape[1] :] - wanted).max()
            found[column].append(float(error / wanted.std()))
    return max(found[0]), max(found[1], default=None)


def runs(model: RunningModel, ids: Any, decoder_ids: Any) -> Iterator[Any]:
    if decoder_ids is not None:
        yield model.logits(ids, decoder_ids)
        yield step_by_step(model, decoder_ids, model.encode(ids))
        return
    first = len(ids) - 4  # the last layer computes no more than is asked for
    yield np.concatenate([model.logits(ids)[:first], model.forward(ids, first=first)])
    if model.architecture.block.causal:
        yield step_by_step(model, ids, model.new_cache())


def closeness(model: RunningModel) -> float:
    """How near to the truth logits have to be that are computed token by token."""
    return ROUNDED if any(each.format.is_quantized for each in model.tensors.values()) else CLOSE


def step_by_step(model: RunningModel, ids: Any, cache: KVCache) -> Any:
    return np.concatenate([model.forward(ids[i : i + 1], cache) for i in range(len(ids))])


def tokenizer_error(entry: str, file: Path) -> str:
    """The first text that the file's tokenizer cuts otherwise than the model's own; "" where there is none."""
    name = json.loads((ZOO / entry / "spec.json").read_text(encoding="utf-8")).get("tokenizer")
    if not name or (ZOO / entry / "added_tokens.json").exists():  # a vocabulary of its own, whose ids nobody wrote down
        return ""
    tokenizer = gguftools.open(file).tokenizer
    for case in json.loads((ZOO / "tokenizers" / name / "encodings.json").read_text(encoding="utf-8")):
        wanted = case.get("sentencepiece", case["hf"])
        if tokenizer.encode(case["text"], add_special=False, parse_special=True) != wanted:
            return f"{case['text']!r} is cut otherwise"
    return ""


def main(names: list[str]) -> int:
    print(f"{'entry':24s} keys, tensors   logits   cached   tokenizer")
    wrong = 0
    for entry in names or entries():
        with tempfile.TemporaryDirectory() as work:
            found = examine(entry, Path(work))
        cached = "-" if found.cached is None else f"{found.cached:.0e}"
        reasons = sorted({reason for (name, _), reason in REASONS.items() if name == entry})
        print(
            f"{entry:24s} {'differ' if found.files else 'equal':13s}   {found.once:.0e}   {cached:6s}   "
            f"{found.tokenizer or 'equal'}"
        )
        for line in (*reasons, *([found.files] if "files" in found.unexplained else [])):
            print(f"    {line}")
        wrong += bool(found.unexplained)
    print(f"{len(names or entries())} entries, {wrong} wrong without a known reason")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
