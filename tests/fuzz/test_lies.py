"""Files whose keys and tensors contradict each other: they are refused by an error of ours, quickly and within bounded
memory, and `validate` calls no file sound that does not run.

The suite tries 150 of them. Many more, over the zoo too where it is there:

    python -m tests.fuzz.test_lies --count 100000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata, Value, ValueType
from archs.schema import MODEL
from gguftools.conversion.export import export
from gguftools.inspection import describe
from gguftools.inspection.audit import audit
from gguftools.inspection.compare import diff
from gguftools.inspection.drafting import can_draft
from gguftools.inspection.validation import validate
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.measurement.importance import imatrix
from gguftools.models.model import Model
from gguftools.writing.options import WriteOptions
from quants import Tensor, format_named, from_array
from quants.errors import GgufToolsError, ModelError
from tests import zoo, zoo_build
from tests.archs import checkpoints

SECONDS, MEMORY = 1.0, 300 << 20
BATCH = 100  # cases of a child, which a crash ends
HANGS = 20  # seconds of processor time after which a child is ended
SMALL = (
    "gemma3n",
    "gemma4-moe",
    "glm4-moe-lite",
    "lfm2-moe",
    "llama4",
    "nemotron-h-moe",
    "qwen3-5",
    "umt5",
    "exaone-moe",
    "granite-swa",
    "xlm-roberta",
)
TEXT = "the cat sat on the mat and looked at the dog, which looked at the cat in turn. " * 4
WHOLE = (0, 1, 2, 3, 5, 7, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
REAL = (0.0, -1.0, 1.0, 0.5, 1e-30, 1e30, 3e38, float("nan"), float("inf"), -float("inf"))
FORMATS = ("I8", "I32", "I64", "F64", "F16", "BF16", "Q8_0", "Q4_0", "IQ4_NL")
ROLES = (
    "ssm_x",
    "ffn_gate_inp",
    "attn_kv_a_mqa",
    "shortconv.conv",
    "attn_sinks",
    "ssm_ba",
    "ffn_gate",
    "inp_gate",
    "altup_router",
    "attn_qkv",
    "attn_gate",
    "ffn_down_t",
    "fc1",
    "attn_q_norm",
)
OUTSIDE = (
    "dec.output_norm.weight",
    "altup_proj.weight",
    "position_embd.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "token_embd_proj.weight",
)
FROM_DATA = ("finite", "is past the")  # what no header tells


@dataclass
class Case:
    """A model that lies, and how."""

    entry: str
    metadata: Metadata
    tensors: dict[str, Tensor]
    lies: list[str]


def sources(folder: Path, names: list[str] | None = None) -> dict[str, Path]:
    """Small sound models, converted into `folder`: of tests/data/families, and of the zoo where all are wanted."""
    builders = {name: checkpoints.build for name in checkpoints.entries() if names is None or name in names}
    if names is None and zoo.ZOO.exists():
        build = zoo_build.build
        builders |= {name: lambda name, to: build(zoo.ZOO, name, to) for name in zoo.entries()}
    found = {}
    for name, make in builders.items():
        found[name] = folder / f"{name}.gguf"
        if not found[name].exists():
            with tempfile.TemporaryDirectory() as work:
                make(name, Path(work) / name)
                gguftools.convert(Path(work) / name, found[name], "f32")
    return found


@cache
def opened_once(path: Path) -> Model:
    return gguftools.open(path)


def lying(models: dict[str, Path], seed: str) -> Case:
    """One to three lies about one of the models."""
    draw = random.Random(seed)
    entry = draw.choice(sorted(models))
    opened = opened_once(models[entry])
    case = Case(entry, opened.metadata.copy(), dict(opened.tensors), [])
    for _ in range(draw.choice((1, 1, 2, 3))):
        draw.choice((lie_in_a_key, lie_in_a_key, lie_in_a_shape, lie_in_names, lie_in_data))(case, draw)
    return case


def lie_in_a_key(case: Case, draw: random.Random) -> None:
    architecture = case.metadata["general.architecture"]
    there = [key for key in case.metadata if key.startswith((f"{architecture}.", "xielu.", "tokenizer.ggml."))]
    there = [key for key in there if not key.endswith((".tokens", ".merges", ".scores", ".token_type"))]
    key = draw.choice(there) if draw.random() < 0.75 else f"{architecture}.{draw.choice(sorted(MODEL))}"
    old = case.metadata.value(key) if key in case.metadata else None
    value = other_value(key.removeprefix(f"{architecture}."), old, draw)
    case.lies.append(f"{key} = {value}")
    if value is None:
        case.metadata.pop(key, None)
    else:
        case.metadata.set(key, value.data, value.type, value.element)


def other_value(key: str, old: Value | None, draw: random.Random) -> Value | None:
    """Another value of the same kind, mostly; None removes the key."""
    rule = MODEL.get(key)
    kind = old.type if old else rule.type if rule else ValueType.UINT32
    if draw.random() < 0.08:
        return None
    if draw.random() < 0.15:
        kind = draw.choice(
            (
                ValueType.UINT32,
                ValueType.FLOAT32,
                ValueType.STRING,
                ValueType.BOOL,
                ValueType.UINT64,
                ValueType.INT32,
                ValueType.ARRAY,
            )
        )
    if kind is ValueType.ARRAY or (draw.random() < 0.1 and kind is not ValueType.STRING):
        plain = draw.choice((ValueType.UINT32, ValueType.FLOAT32, ValueType.BOOL))
        element = old.element if old and old.element else plain
        length = len(old.data) if old and old.type is ValueType.ARRAY else draw.choice((0, 1, 2, 3, 4))
        length = max(0, length + draw.choice((0, 0, 0, 1, -1, 1000)))
        items = [scalar(element, None, draw) for _ in range(length)]
        return Value(items, ValueType.ARRAY, element)
    return Value(scalar(kind, old, draw), kind)


def scalar(kind: ValueType, old: Value | None, draw: random.Random) -> Any:
    if kind is ValueType.STRING:
        return draw.choice(("", "none", "yarn", "linear", "longrope", "relu", "xielu", "silu", "gelu", "nonsense"))
    if kind is ValueType.BOOL:
        return draw.random() < 0.5
    if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
        return draw.choice(REAL)
    near = old.data if old and isinstance(old.data, int) else draw.choice((1, 8))
    most = {ValueType.INT32: (1 << 31) - 1, ValueType.UINT8: 255, ValueType.UINT64: 1 << 63}.get(kind, (1 << 32) - 1)
    wanted = draw.choice((*WHOLE, near + 1, near - 1, 2 * near, near // 2, 1 << 63))
    return max(0, min(wanted, most)) if kind is not ValueType.INT32 or draw.random() < 0.7 else -1


def lie_in_a_shape(case: Case, draw: random.Random) -> None:
    name = draw.choice(sorted(case.tensors))
    shape = list(case.tensors[name].shape)
    axis = draw.randrange(len(shape))
    how = draw.choice(("turned", "longer", "shorter", "double", "half", "flat", "deep", "one", "dropped", "merged"))
    if how == "turned":
        shape.reverse()
    elif how in ("flat", "dropped", "merged"):
        merged = [shape[0], math.prod(shape[1:])]
        shape = {"flat": [math.prod(shape)], "dropped": shape[1:] or [1], "merged": merged}[how]
    elif how == "deep":
        shape = [1, *shape]
    else:
        changed = {"longer": shape[axis] + 1, "shorter": shape[axis] - 1, "double": 2 * shape[axis], "one": 1}
        shape[axis] = max(1, changed.get(how, shape[axis] // 2))
    everywhere = draw.random() < 0.3  # in all layers
    parts = name.split(".")
    for each in case.tensors:
        others = each.split(".")
        if each == name or (everywhere and others[2:] == parts[2:] and len(parts) > 3):
            case.tensors[each] = random_tensor(each, shape, draw)
    case.lies.append(f"{name} is {how}: {shape}{' everywhere' if everywhere else ''}")


def random_tensor(name: str, shape: list[int], draw: random.Random) -> Tensor:
    values = np.random.default_rng(draw.randrange(1 << 32)).standard_normal(shape).astype(np.float32)
    return from_array(name, values * np.float32(0.1))


def lie_in_names(case: Case, draw: random.Random) -> None:
    """Tensors that are missing, exchanged, or in other layers."""
    one, other = draw.choice(sorted(case.tensors)), draw.choice(sorted(case.tensors))
    how = draw.choice(("missing", "missing", "missing everywhere", "exchanged", "copied", "further layer", "strange"))
    case.lies.append(f"{one} {how} {other}")
    tensors = case.tensors
    if how == "missing":
        del tensors[one]
    elif how == "missing everywhere":
        for each in [each for each in tensors if each.split(".")[2:] == one.split(".")[2:]]:
            del tensors[each]
    elif how == "exchanged":
        tensors[one], tensors[other] = tensors[other].renamed(one), tensors[one].renamed(other)
    elif how == "copied":
        tensors[one] = tensors[other].renamed(one)
    elif how == "further layer":
        number = draw.choice((2, 9, 99, 4_000_000_000))
        for each in [each for each in tensors if each.startswith(("blk.1.", "dec.blk.1."))]:
            name = each.replace("blk.1.", f"blk.{number}.")
            tensors[name] = tensors[each].renamed(name)
    else:
        name = draw.choice((*OUTSIDE, *(f"blk.0.{role}.weight" for role in ROLES)))
        tensors[name] = tensors[other].renamed(name)
        case.lies.append(name)


def lie_in_data(case: Case, draw: random.Random) -> None:
    """Other formats, and values that are no numbers."""
    name = draw.choice(sorted(case.tensors))
    tensor = case.tensors[name]
    if draw.random() < 0.25:
        values = tensor.float32().copy()
        values.reshape(-1)[draw.randrange(values.size)] = draw.choice((np.nan, np.inf, -np.inf))
        case.tensors[name] = replace(from_array(name, values), shape=tensor.shape)
        case.lies.append(f"{name} is not finite")
        return
    form = format_named(draw.choice(FORMATS))
    if tensor.width % form.block_size:
        return
    rows = tensor.float32().reshape(tensor.rows, tensor.width)
    case.tensors[name] = replace(stored_as(form.name, rows), name=name, shape=tensor.shape)
    case.lies.append(f"{name} is {form.name}")


def stored_as(name: str, rows: Any) -> Tensor:
    """float32 rows in a format; of integers eight times as much, so that they are not all zero."""
    form = format_named(name)
    whole = {"I8": "<i1", "I32": "<i4", "I64": "<i8", "F64": "<f8"}
    raw = (8 * rows).astype(whole[name]).view(np.uint8).reshape(len(rows), -1) if name in whole else form.encode(rows)
    return Tensor(name, rows.shape, form, lambda start, stop: raw[start:stop])


def write(case: Case, path: Path) -> None:
    infos = [TensorInfo(name, tensor.shape, tensor.format) for name, tensor in case.tensors.items()]
    layout = plan_file(case.metadata, infos)
    with path.open("wb") as file:
        file.write(layout.header)
        for offset, tensor in zip(layout.offsets, case.tensors.values(), strict=True):
            file.seek(offset)
            file.write(np.ascontiguousarray(tensor.raw()).tobytes())
        file.truncate(layout.total)


def run(path: Path) -> None:
    """A few tokens at once, and one after the other."""
    model = gguftools.load(path, threads=1)
    ids = [1, 2, 3, 5, 1, 2]
    if model.encoder_decoder is not None:
        model.logits(ids, [0, 1, 2])
        return
    model.logits(ids)
    if model.architecture.block.causal:
        cache = model.new_cache()
        for piece in (ids[:3], ids[3:4], ids[4:]):
            model.forward(piece, cache)


def commands(path: Path, original: Path, folder: Path, draw: random.Random) -> None:
    """What else looks at a model; errors of ours are answers."""
    text = folder / "text.txt"
    text.write_text(TEXT)
    tasks = [
        lambda: gguftools.perplexity(path, text, n_ctx=8, chunks=2, threads=1),
        lambda: imatrix(path, text, folder / "m.gguf", n_ctx=8, chunks=2, threads=1),
        lambda: export(path, folder / "hf", write=WriteOptions(overwrite=True, threads=1)),
        lambda: gguftools.quantize(path, "Q4_K_M", folder / "q.gguf", write=WriteOptions(threads=1)),
        lambda: describe.summary(gguftools.open(path)),
        lambda: list(describe.as_text(gguftools.open(path))),
        lambda: diff(path, original, threads=1),
        lambda: can_draft(path, original),
        lambda: audit(path),
        lambda: gguftools.set_metadata(path, {"general.name": "x"}, dry_run=True),
    ]
    for task in draw.sample(tasks, 3):
        with contextlib.suppress(GgufToolsError):
            task()


def warm_up(models: dict[str, Path], folder: Path) -> None:
    """Load what runs, lest the first case of each child pay for it."""
    for path in models.values():
        run(path)
        opened_once(path)
    for seed in range(12):
        commands(models[SMALL[seed % 2]], models[SMALL[0]], folder, random.Random(seed))
    for form in FORMATS:
        rows = np.zeros((2, 32), np.float32)
        stored_as(form, rows).float32()


def judge(models: dict[str, Path], seed: str, folder: Path, again: bool = False) -> tuple[str, str]:
    """What became of a case: a word for the table, and a line where it is wrong.

    One that takes too long is tried again, by when kernels that were compiled for it are there.
    """
    case = lying(models, seed)
    path = folder / "lie.gguf"
    try:
        write(case, path)
    except GgufToolsError:
        return "cannot be written", ""
    what = f"seed {seed} ({case.entry}): {'; '.join(case.lies)}"
    start, before = time.process_time(), peak(reset=True)
    try:
        report = validate(path, data=False)
        try:
            run(path)
            outcome = "runs"
        except GgufToolsError as error:
            outcome = "refused"
            if not isinstance(error, ModelError):
                return "wrong", f"{what}: {error!r}"
            if report.ok and not any(word in str(error) for word in FROM_DATA):
                return "wrong", f"{what}: validate calls it sound, but {error}"
        if random.Random(seed).random() < 0.3:  # they take most of the time
            commands(path, models[case.entry], folder, random.Random(seed))
    except Exception:
        return "wrong", f"{what}\n{traceback.format_exc(limit=-4)}"
    seconds, grown = time.process_time() - start, peak() - before
    if seconds > SECONDS and not again:
        return judge(models, seed, folder, again=True)
    if seconds > SECONDS or grown > MEMORY:
        return "wrong", f"{what}: {seconds:.1f} s, {grown >> 20} MB"
    return outcome, ""


def peak(reset: bool = False) -> int:
    """Bytes resident at most, since the last reset where Linux can do that."""
    if reset and os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def batch(models: dict[str, Path], seeds: list[str]) -> tuple[Counter[str], list[str]]:
    """Judge cases in a child, so that a crash or a hang is one case's."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    while seeds:
        read, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(models, seeds, write_end)
        os.close(write_end)
        with os.fdopen(read, "rb") as answers:
            lines = answers.read().split(b"\0")[:-1]
        _, status = os.waitpid(child, 0)
        for line in lines:
            word, _, message = line.decode().partition("\n")
            counts[word] += 1
            wrong += [message] if message else []
        seeds = seeds[len(lines) :]
        if status and seeds:
            counts["wrong"] += 1
            wrong.append(f"seed {seeds[0]}: ended by signal {os.WTERMSIG(status)}: {lying(models, seeds[0]).lies}")
            seeds = seeds[1:]
    return counts, wrong


def _child(models: dict[str, Path], seeds: list[str], out: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), used + (3 << 30)))
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, HANGS)  # ends the process: kernels cannot be interrupted otherwise
            word, message = judge(models, seed, Path(folder))
            os.write(out, f"{word}\n{message}".encode("utf-8", "replace") + b"\0")
    os._exit(0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sources(tmp_path_factory.mktemp("lies"), list(SMALL))


def test_lies_are_refused(models: dict[str, Path]) -> None:
    counts, wrong = batch(models, [f"suite:{i}" for i in range(150)])
    assert not wrong, "\n\n".join(wrong)
    assert counts["refused"] > 40
    assert counts["runs"] > 10


def test_what_does_not_lie_runs(models: dict[str, Path]) -> None:
    for path in models.values():
        assert validate(path, data=False).ok
        run(path)


@pytest.mark.parametrize("name", ["gemma3n", "lfm2-moe", "nemotron-h-moe"])
def test_validate_misses_any_tensor_that_running_needs(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    opened = opened_once(models[name])
    for missing in opened.tensors:
        left = {each: tensor for each, tensor in opened.tensors.items() if each != missing}
        write(Case(name, opened.metadata.copy(), left, []), path := tmp_path / "lie.gguf")
        if validate(path, data=False).ok:
            run(path)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--models", help="a folder to keep the converted models in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = sources(Path(options.models or folder))
        names = {gguftools.open(path).metadata["general.architecture"] for path in models.values()}
        print(f"{len(models)} models of {len(names)} architectures")
        warm_up(models, Path(folder))
        counts, failures, start = Counter[str](), 0, time.monotonic()
        for first in range(options.first, options.first + options.count, BATCH):
            last = min(first + BATCH, options.first + options.count)
            found, wrong = batch(models, [f"{options.seed}:{i}" for i in range(first, last)])
            counts += found
            failures += len(wrong)
            for line in wrong:
                print(line, flush=True)
        print(f"{options.count} cases, {time.monotonic() - start:.0f} s: {dict(counts)}, {failures} wrong")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
