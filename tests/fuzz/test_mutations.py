"""Mutated files: readers answer with a result or with an error of ours, quickly and within bounded memory.

The suite tries some 2,000 of them. Many more:

    python tests/fuzz/test_mutations.py --count 200000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archs.metadata import Metadata, Value, ValueType
from archs.vocab import vocabulary
from gguftools.io.checkpoint.safetensors import open_safetensors
from gguftools.io.checkpoint.torch_pickle import open_torch
from gguftools.io.gguf.journal import Journal, _load
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.quantization.imatrix import Entry, ImportanceMatrix, problems, read_imatrix, write_imatrix
from quants import Tensor, format_named
from quants.errors import GgufToolsError
from runtime.tokenizer import tokenizer_from_metadata

SECONDS = 3.0
MEMORY = 64 << 20
TORCH = Path(__file__).parents[1] / "data" / "torch"
NUMBERS = (0, 1, 2, 7, 8, 9, 12, 31, 32, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1)
KINDS = ("flip", "set", "number", "insert", "delete", "repeat", "cut", "swap")

Step = tuple[str, float, float, int]


def gguf_seed(byte_order: str) -> bytes:
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    for kind in ValueType:
        if kind not in (ValueType.ARRAY, ValueType.STRING):
            metadata.set(f"s.{kind.name}", 1, kind)
            metadata.set(f"a.{kind.name}", [1, 0, 1], ValueType.ARRAY, kind)
    inner = [Value(["a", ""], ValueType.ARRAY, ValueType.STRING), Value([1], ValueType.ARRAY, ValueType.INT8)]
    metadata.set("nested", inner, ValueType.ARRAY, ValueType.ARRAY)
    metadata.set("tokens", ["t" * (i % 9) for i in range(90)], ValueType.ARRAY, ValueType.STRING)
    metadata.set("general.alignment", 32, ValueType.UINT32)
    infos = [TensorInfo("a", (2, 8), format_named("F32")), TensorInfo("b", (2, 2, 64), format_named("Q4_0"))]
    layout = plan_file(metadata, [*infos, TensorInfo("c", (0,), format_named("F16"))], byte_order=byte_order)
    return layout.header + bytes(layout.total - len(layout.header))


def safetensors_seed() -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for i, kind in enumerate(("F32", "BF16", "U8", "F8_E4M3", "I64")):
        size = {"F32": 4, "BF16": 2, "I64": 8}.get(kind, 1) * 8
        begin = 0 if not i else header[f"layers.{i - 1}.weight"]["data_offsets"][1]
        header[f"layers.{i}.weight"] = {"dtype": kind, "shape": [2, 4], "data_offsets": [begin, begin + size]}
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(128)


def touch(tensors: dict[str, Tensor]) -> None:
    """What is done to a tensor when it is read: a look at its first and last rows."""
    for tensor in tensors.values():
        str(tensor.shape), tensor.nbytes
        for row in {0, tensor.rows - 1} if tensor.rows > 0 else ():
            assert tensor.raw(row, row + 1).nbytes == tensor.row_bytes


def read_gguf(path: Path) -> None:
    opened = open_gguf(path)
    touch(opened.tensors)
    for key in opened.metadata:
        value = opened.metadata.value(key)
        if value.type is ValueType.ARRAY:
            list(value.data)


def problems_of(path: Path) -> None:
    problems(read_imatrix(path))


def read_journal(path: Path) -> None:
    _load(path)


def matrix_seed(name: str) -> bytes:
    """An importance matrix in the form that the name asks for."""
    sums = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    entries = {f"blk.{i}.attn_q.weight": Entry(sums + i, np.array([4], np.float32)) for i in range(3)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_imatrix(ImportanceMatrix(path, entries, ("text.txt",), 4, 512), path)
        return path.read_bytes()


def tokenizer_seed() -> bytes:
    """A small tokenizer.json of byte-level BPE, with added tokens and merges."""
    tokens = [chr(code) for code in range(33, 127)] + ["ab", "abc", "<s>"]
    content = {
        "added_tokens": [{"id": len(tokens) - 1, "content": "<s>", "special": True, "normalized": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["a b", "ab c"]},
    }
    return json.dumps(content).encode()


def read_tokenizer(path: Path) -> None:
    """The vocabulary of a folder that holds the file, and its tokenizer."""
    folder = path.with_name(f"{path.name}.folder")
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(path.read_bytes())
    words = vocabulary(folder, ("bpe",), {}, 128)
    assert len(words["tokenizer.ggml.tokens"]) >= 97
    tokenizer_from_metadata(words).encode("ab abc <s>")


JOURNAL = Journal(10, b"old", b"new", 99, 50, "ab" * 32).store()
READERS: dict[str, tuple[Callable[[Path], None], bytes]] = {
    "gguf": (read_gguf, gguf_seed("little")),
    "gguf, big endian": (read_gguf, gguf_seed("big")),
    "safetensors": (lambda path: touch(open_safetensors(path)), safetensors_seed()),
    "torch": (lambda path: touch(open_torch(path)), (TORCH / "tensors.bin").read_bytes()),
    "torch, legacy": (lambda path: touch(open_torch(path)), (TORCH / "tensors-legacy.bin").read_bytes()),
    "journal": (read_journal, JOURNAL),
    "importance matrix": (problems_of, matrix_seed("matrix.gguf")),
    "importance matrix, legacy": (problems_of, matrix_seed("matrix.dat")),
    "tokenizer.json": (read_tokenizer, tokenizer_seed()),
}


def mutate(data: bytes, steps: list[Step]) -> bytes:
    """Places are given as fractions of the data's length, so that they mean something after any other step."""
    raw = bytearray(data)
    for kind, at, to, number in steps:
        if not raw:
            break
        i, j = int(at * len(raw)), int(to * len(raw))
        short = raw[i : i + 1 + number % 24]
        if kind == "flip":
            raw[i] ^= 1 << number % 8
        elif kind == "set":
            raw[i] = number % 256
        elif kind == "number":
            size = (4, 8)[number % 2]
            value = NUMBERS[number % len(NUMBERS)] % (1 << 8 * size)
            raw[i : i + size] = value.to_bytes(size, ("little", "big")[number // 2 % 2])
        elif kind == "insert":
            raw[i:i] = short[::-1]
        elif kind == "delete":
            del raw[i : i + 1 + number % 24]
        elif kind == "repeat":
            raw[j:j] = short * (1 + number % 5)
        elif kind == "cut":
            del raw[max(i, 1) :]
        else:
            raw[i : i + len(short)] = raw[j : j + len(short)]
    return bytes(raw)


def attempt(name: str, steps: list[Step], path: Path) -> str:
    """Read one mutated file: "read" or "refused". Anything else is raised."""
    reader, seed = READERS[name]
    path.write_bytes(mutate(seed, steps))
    begin = time.process_time()
    try:
        reader(path)
        message = ""
    except GgufToolsError as error:
        message = str(error)
    seconds = time.process_time() - begin
    assert "\n" not in message, message
    assert len(message) < 1000, message
    assert seconds < SECONDS, f"{name}: {seconds:.1f} s"
    return "refused" if message else "read"


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


FRACTIONS = st.floats(0, 1, exclude_max=True)
STEP = st.tuples(st.sampled_from(KINDS), FRACTIONS, FRACTIONS, st.integers(0, 1 << 16))
STEPS = st.lists(STEP, min_size=1, max_size=6)


@pytest.mark.parametrize("name", READERS)
def test_mutated_files(name: str, tmp_path: Path) -> None:
    attempt(name, [], tmp_path / "file")
    before = peak_memory()

    @settings(
        max_examples=100 if name == "journal" else 200,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        attempt(name, steps, tmp_path / "file")

    check()
    assert peak_memory() - before < MEMORY


def test_seeds_are_sound(tmp_path: Path) -> None:
    for name in READERS:
        assert attempt(name, [], tmp_path / "file") == "read"


def random_steps(chance: random.Random) -> list[Step]:
    return [
        (chance.choice(KINDS), chance.random(), chance.random(), chance.randrange(1 << 16))
        for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 6)))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance, outcomes, names = random.Random(arguments.seed), Counter[str](), list(READERS)
    failures = 0
    # What is tried where a tokenizer.json is none any more; its import is not the reader's memory.
    importlib.import_module("transformers.models.auto.tokenization_auto")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            attempt(name, [], Path(folder) / "file")
        before, begin = peak_memory(), time.perf_counter()
        for i in range(arguments.count):
            name, steps = names[i % len(names)], random_steps(chance)
            try:
                outcomes[f"{name}: {attempt(name, steps, Path(folder) / 'file')}"] += 1
            except Exception as error:
                failures += 1
                print(f"{name}: {type(error).__name__}: {error}\n  {steps}", file=sys.stderr)
        seconds, memory = time.perf_counter() - begin, peak_memory() - before
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8}  {outcome}")
    print(f"{failures} failures in {arguments.count} files, {seconds:.0f} s, peak memory +{memory >> 20} MB")
    return 1 if failures or memory > MEMORY else 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())
