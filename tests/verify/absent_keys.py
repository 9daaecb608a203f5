"""Record what llama.cpp takes where a file lacks a key, and print how ours compares.

    python -m tests.verify.absent_keys --describe                    models of the zoo and of tests/data/families, anew
    python -m tests.verify.absent_keys --record SOURCE LIBRARIES     their logits by llama.cpp (b11434), key by key
    python -m tests.verify.absent_keys [--table] [MODEL …]           each case beside the recorded logits

SOURCE is llama.cpp's, LIBRARIES the folder with its libllama.so. Each model of `tests.absent_keys` is run as it is,
without each key of its network in turn, without all that llama.cpp does not need, and with old spellings.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import gguftools
from archs.metadata import Metadata, ValueType
from runtime.model import RunningModel
from tests import absent_keys, zoo, zoo_build
from tests.absent_keys import Case, Compared, Description
from tests.archs import checkpoints

from .absent_models import SKIPPED, VARIANTS, WITH_OUR_KEYS

TOKENS = 40
LONGER = {"deepseek-v4": 140, "hy-v4": 150}
ALIGNMENT = 32
TYPES = {"F32": 0, "I32": 26}


def describe(entry: str, folder: Path) -> Description:
    """Convert a small checkpoint and describe the file."""
    if entry in checkpoints.entries():
        checkpoints.build(entry, folder / entry)
    else:
        zoo_build.build(zoo.ZOO, entry, folder / entry)
    gguftools.convert(folder / entry, folder / "f32.gguf", "f32")
    with gguftools.open(folder / "f32.gguf") as file:
        return described(entry, file.metadata, file.tensors)


def written_by_reference(entry: str, metadata: Metadata) -> list[str]:
    """A file's keys without those that are ours alone."""
    if entry in WITH_OUR_KEYS:
        return list(metadata)
    if entry in checkpoints.entries():
        record = json.loads((checkpoints.FAMILIES / entry / "reference.json").read_text(encoding="utf-8"))["keys"]
    else:
        record = json.loads((zoo.ZOO / entry / "ref.json").read_text(encoding="utf-8"))["f32"].get("kv", metadata)
    return [key for key in metadata if key in record]


def described(name: str, metadata: Metadata, tensors: Any) -> Description:
    keys: dict[str, tuple[Any, ...]] = {}
    for key in written_by_reference(name, metadata):
        if not key.startswith(absent_keys.KEPT_APART) or key in (*absent_keys.OF_NETWORKS, "general.architecture"):
            value = metadata.value(key)
            kinds = [kind.name for kind in (value.type, value.element) if kind is not None]
            data = value.data if value.element is None else [getattr(x, "item", lambda x=x: x)() for x in value.data]
            keys[key] = (*kinds, data)
    count = LONGER.get(name, TOKENS)
    random = np.random.default_rng(list(name.encode()))
    model = RunningModel(metadata, tensors)
    ids, decoder_ids = (random.integers(3, model.vocabulary_size, size).tolist() for size in (count, 16))
    width = model.logits(ids, decoder_ids if model.encoder_decoder else ()).shape[-1]
    states = width != model.vocabulary_size
    return Description(
        name,
        keys,
        [moments(each) for each in tensors.values()],
        ids,
        decoder_ids if model.encoder_decoder else [],
        states,
    )


def moments(tensor: Any) -> list[Any]:
    if tensor.format.name == "I32":
        return [tensor.name, "I32", list(tensor.shape), np.asarray(tensor.elements()).reshape(-1).tolist()]
    values = tensor.float32().astype(np.float64)
    numbers = (values.mean(), values.std(), values.min(), values.max())
    return [tensor.name, "F32", list(tensor.shape), *(float(f"{number:.4g}") for number in numbers)]


def write_gguf(file: BinaryIO, metadata: Metadata, arrays: dict[str, NDArray[Any]]) -> None:
    """A GGUF file, by other code than what is tested."""
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(arrays), len(metadata)))
    for key in metadata:
        value = metadata.value(key)
        file.write(as_text(key) + struct.pack("<I", value.type))
        if value.element is None:
            file.write(as_stored(value.data, value.type))
        else:
            file.write(struct.pack("<IQ", value.element, len(value.data)))
            file.write(b"".join(as_stored(item, value.element) for item in value.data))
    place = 0
    for name, array in arrays.items():
        kind = TYPES["I32" if array.dtype.kind == "i" else "F32"]
        file.write(as_text(name) + struct.pack(f"<I{array.ndim}QIQ", array.ndim, *array.shape[::-1], kind, place))
        place += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    for array in arrays.values():
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(array.tobytes())
    file.write(bytes(-file.tell() % ALIGNMENT))


def as_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def as_stored(data: Any, kind: ValueType) -> bytes:
    return as_text(data) if kind is ValueType.STRING else struct.pack("<" + zoo.NUMBERS[kind], data)


def compiled(source: Path, libraries: Path, folder: Path) -> Path:
    """The program of absent_keys.cpp."""
    program = folder / "absent_keys"
    include = [f"-I{source / part}" for part in ("include", "ggml/include")]
    linked = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    source_file = str(Path(__file__).with_suffix(".cpp"))
    subprocess.run(["c++", "-O1", "-std=c++17", "-w", *include, source_file, "-o", program, *linked], check=True)
    return program


class Reference:
    """llama.cpp, which is given files and answers."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder

    def answers(self, lines: list[str], states: bool = False) -> list[str]:
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"} | ({"STATES": "1"} if states else {})
        done = subprocess.run(
            [self.program],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            env=environment,
            check=True,
            errors="replace",
        )
        return done.stdout.splitlines()

    def run(self, description: Description, cases: list[Case]) -> list[Case]:
        """The cases with what llama.cpp makes of them."""
        if not cases:
            return []
        arrays = description.arrays()
        ids = " ".join(map(str, description.ids))
        if description.decoder_ids:
            ids += " / " + " ".join(map(str, description.decoder_ids))
        files = [self.folder / f"{number}.gguf" for number in range(len(cases))]
        for file, case in zip(files, cases, strict=True):
            with file.open("wb") as out:
                write_gguf(out, description.metadata(case), arrays)
        found = self.answers([f"logits {file} {ids}" for file in files], description.states)
        done = [recorded(description, *each) for each in zip(cases, files, found, strict=True)]
        for file in files:
            file.unlink()
            Path(f"{file}.out").unlink(missing_ok=True)
        return done


def recorded(description: Description, case: Case, file: Path, answer: str) -> Case:
    outcome, *rest = answer.split(" ", 1)
    if outcome != "loaded":
        return Case(case.model, case.drop, case.changed, outcome, reason_of("".join(rest)))
    rows, columns = map(int, rest[0].split())
    logits = np.fromfile(f"{file}.out", np.float32).reshape(rows, columns)
    if not np.isfinite(logits).all():
        return Case(case.model, case.drop, case.changed, "refused", "numbers are not finite")
    shown = absent_keys.shown(logits, description.name)
    return Case(case.model, case.drop, case.changed, "loaded", "", shown, float(logits.std()))


def reason_of(said: str) -> str:
    """The line of llama.cpp's that tells why."""
    lines = [line for line in said.split("|") if line.strip()]
    telling = [line for line in lines if "error" in line or "ASSERT" in line or "missing" in line] or lines
    return telling[0].split("error loading model: ")[-1].split("llama.cpp/")[-1][:200] if telling else ""


def cases_of(description: Description, reference: Reference) -> list[Case]:
    name, keys = description.name, description.network_keys()
    done = reference.run(description, [Case(name)])
    if done[0].outcome != "loaded":
        return done
    done += reference.run(description, [Case(name, (key,)) for key in keys])
    optional = tuple(case.drop[0] for case in done[1:] if case.outcome == "loaded")
    more = [Case(name, optional)] if len(optional) > 1 else []
    return done + reference.run(description, [*more, *old_spellings(description)])


def old_spellings(description: Description) -> Iterator[Case]:
    """The factor of linear scaling under its name of 2023; scaling without its kind."""
    own = description.architecture
    factor, kind = f"{own}.rope.scaling.factor", f"{own}.rope.scaling.type"
    base = f"{own}.rope.freq_base"
    old = {f"{own}.rope.scale_linear": ("FLOAT32", 4.0)}
    if factor in description.keys:
        yield Case(description.name, (factor,), old)
        yield Case(description.name, (factor, kind), old)
        yield Case(description.name, (kind,), old)
    elif base in description.keys:
        yield Case(description.name, (), old)


def write_truth(of_models: Iterable[list[Case]]) -> None:
    numbers: dict[str, int] = {}
    lines = []
    for case in (case for of_model in of_models for case in of_model):
        line: dict[str, Any] = {"model": case.model, "drop": case.drop, "outcome": case.outcome}
        if case.changed:
            line["changed"] = case.changed
        if case.rows is None:
            line["reason"] = case.reason
        else:
            values = json.dumps([[float(f"{value:.6g}") for value in row] for row in case.rows.tolist()])
            if values not in numbers:
                numbers[values] = len(numbers)
                lines.append(f'{{"values": {values}}}')
            line |= {"rows": numbers[values], "std": float(f"{case.std:.5g}")}
        lines.append(json.dumps(line))
    write_lines(absent_keys.TRUTH, lines)


def write_lines(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write("".join(line + "\n" for line in lines).encode())


def describe_all() -> None:
    made: dict[str, Description] = {}
    origins = {entry for entry, _ in VARIANTS.values()}
    for entry in sorted(({*zoo.entries(), *checkpoints.entries()} - {*SKIPPED}) | origins):
        with tempfile.TemporaryDirectory() as folder:
            made[entry] = describe(entry, Path(folder))
    made |= {name: change(made[entry], name) for name, (entry, change) in VARIANTS.items()}
    write_lines(absent_keys.MODELS, (json.dumps(vars(made[name])) for name in sorted({*made} - {*SKIPPED})))


def record(source: Path, libraries: Path, names: list[str]) -> None:
    known = absent_keys.descriptions()
    kept = absent_keys.cases() if absent_keys.TRUTH.exists() and names else {}
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(compiled(source, libraries, Path(folder)), Path(folder))
        found = {name: cases_of(known[name], reference) for name in names or known}
    write_truth((kept | found)[name] for name in sorted(known))
    for name, of_model in found.items():
        print(f"{name}: {dict(collections.Counter(case.outcome for case in of_model))} {of_model[0].reason}")


def compare_all(names: list[str], table: bool) -> int:
    """Print what is not equal, or a table by architecture. Returns 1 where anything differs without a reason."""
    by_architecture: dict[str, collections.Counter[str]] = {}
    for name, of_model in absent_keys.cases().items():
        if names and name not in names:
            continue
        description = absent_keys.descriptions()[name]
        found = list(absent_keys.compare(description, of_model))
        by_architecture.setdefault(description.architecture, collections.Counter()).update(x.verdict for x in found)
        for each in () if table else found:
            print_one(each)
    total = sum(by_architecture.values(), collections.Counter())
    if table:
        print(f"| architecture | cases | {' | '.join(VERDICTS)} |\n|---|{'--:|' * (len(VERDICTS) + 1)}")
        for name, counts in sorted([*by_architecture.items(), ("all", total)]):
            print(f"| {name} | {counts.total()} | {' | '.join(str(counts[each]) for each in VERDICTS)} |")
    else:
        print(", ".join(f"{total[each]} {each}" for each in VERDICTS))
    return int(bool(total["differs"] + total["crashed"]))


VERDICTS = ("equal", "on purpose", "differs", "crashed", "refused by both", "refused here", "refused by llama.cpp")


def print_one(each: Compared) -> None:
    if each.verdict in ("differs", "crashed", "refused here"):
        print(f"{each.case.model}: {each.case.name}: {each.verdict} {each.difference:.1e} {each.problem}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--record", nargs=2, type=Path, metavar=("SOURCE", "LIBRARIES"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.describe:
        describe_all()
    if asked.record:
        record(*asked.record, asked.models)
    return 0 if asked.describe or asked.record else compare_all(asked.models, asked.table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
