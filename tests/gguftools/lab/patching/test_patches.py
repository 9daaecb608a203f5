"""Deltas: the new file to the byte, few bytes for small changes, and one line for those that lie."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguftools
from archs.metadata import Metadata, Value, ValueType
from gguftools.io.gguf.reader import open_gguf
from gguftools.lab.patching.delta import BYTES, NEW, read_delta
from gguftools.lab.patching.matching import MIN_SEARCH, Space, Span, spans
from quants import from_array
from quants.errors import FileError, GgufToolsError, OptionError

from ....conftest import ROOT
from ...tiny_models import metadata_of, write_model

RANDOM = np.random.default_rng(1)


@pytest.fixture(scope="module")
def austen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patch") / "austen.gguf"
    gguftools.convert(ROOT / "examples" / "austen-4m", path, "f16")
    return path


def there_and_back(old: Path, new: Path, folder: Path) -> tuple[int, int]:
    """Assert that a delta gives the new file; its new bytes and ranges."""
    delta, made = folder / "delta.gguf", folder / "made.gguf"
    report = gguftools.make_patch(old, new, delta, overwrite=True)
    assert report.nbytes == delta.stat().st_size
    assert gguftools.make_patch(old, new, delta, overwrite=True, dry_run=True).as_dict() == {
        **report.as_dict(),
        "dry_run": True,
    }
    gguftools.apply_patch(old, delta, made, overwrite=True)
    assert made.read_bytes() == new.read_bytes()
    assert gguftools.validate(delta).ok
    return report.fresh, report.ranges


def test_a_changed_key_costs_its_bytes(austen: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.gguf"
    gguftools.set_metadata(
        austen, [gguftools.Set("general.name", "another"), gguftools.SetChatTemplate("{{ messages }}")], output=new
    )
    fresh, ranges = there_and_back(austen, new, tmp_path)
    assert fresh < 20_000
    assert ranges < 12
    assert there_and_back(austen, austen, tmp_path) == (0, 1)


def test_a_changed_tensor_costs_its_bytes(austen: Path, tmp_path: Path) -> None:
    raw = bytearray(austen.read_bytes())
    opened = open_gguf(austen)
    at = opened.offsets["blk.2.ffn_up.weight"] + 70_000
    raw[at : at + 300] = bytes(b ^ 255 for b in raw[at : at + 300])
    (tmp_path / "new.gguf").write_bytes(raw)
    assert there_and_back(austen, tmp_path / "new.gguf", tmp_path) == (300, 3)


def test_layers_that_moved_cost_next_to_nothing(austen: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.gguf"
    gguftools.graft(austen, new, drop_layers=[1])
    assert there_and_back(austen, new, tmp_path)[0] < 4000
    lost = austen.stat().st_size - new.stat().st_size
    assert there_and_back(new, austen, tmp_path)[0] < lost + 4000


def test_experts_that_moved(tmp_path: Path) -> None:
    stacked = RANDOM.standard_normal((8, 40, 64)).astype(np.float32)
    head = {"general.architecture": "x"}
    more = RANDOM.standard_normal((90, 64))
    old = write_model(tmp_path / "old.gguf", metadata_of(head), {"a_exps": stacked, "b": more})
    kept = {"c_exps": stacked[[0, 2, 3, 5, 6, 7]]}
    new = write_model(tmp_path / "new.gguf", metadata_of({**head, "x.expert_count": 6}), kept)
    assert there_and_back(old, new, tmp_path)[0] < 500


def test_quantized_anew_is_all_new(austen: Path, tmp_path: Path) -> None:
    gguftools.quantize(austen, "Q4_K_M", tmp_path / "new.gguf")
    fresh, _ = there_and_back(austen, tmp_path / "new.gguf", tmp_path)
    assert fresh > 0.9 * (tmp_path / "new.gguf").stat().st_size


def test_split_sets(austen: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    gguftools.graft(austen, tmp_path / "short.gguf", drop_layers=[3])
    gguftools.split(austen, tmp_path / "old", max_tensors=11)
    gguftools.split(tmp_path / "short.gguf", tmp_path / "new", max_tensors=7)
    old, new = sorted(tmp_path.glob("old-*"))[2], sorted(tmp_path.glob("new-*"))
    report = gguftools.make_patch(old, new[1], tmp_path / "d.gguf")
    assert report.fresh < 8000
    done = gguftools.apply_patch(old, tmp_path / "d.gguf", tmp_path / "a" / "made.gguf")
    assert [path.name for path in done.paths] == [path.name.replace("new", "made") for path in new]
    assert [path.read_bytes() for path in done.paths] == [path.read_bytes() for path in new]
    there_and_back(old, tmp_path / "short.gguf", tmp_path)
    gguftools.make_patch(austen, new[0], tmp_path / "e.gguf")
    gguftools.apply_patch(austen, tmp_path / "e.gguf", tmp_path / "a" / "again")
    assert (tmp_path / "a" / new[3].name.replace("new", "again")).read_bytes() == new[3].read_bytes()


def test_big_endian_and_files_without_tensors(austen: Path, tmp_path: Path) -> None:
    gguftools.convert_endian(austen, "big", tmp_path / "big.gguf")
    there_and_back(austen, tmp_path / "big.gguf", tmp_path)
    there_and_back(tmp_path / "big.gguf", austen, tmp_path)
    empty = write_model(tmp_path / "e.gguf", metadata_of({"general.architecture": "x"}), {})
    there_and_back(austen, empty, tmp_path)
    there_and_back(empty, austen, tmp_path)


@settings(max_examples=30, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_two_files(data: st.DataObject, tmp_path: Path) -> None:
    """Tensors of one pool of bytes, cut, moved and changed at random."""
    pool = np.random.default_rng(5).integers(-128, 128, 9 * MIN_SEARCH, np.int8)
    files = []
    for name in ("one", "other"):
        tensors = {}
        for number in data.draw(st.lists(st.integers(0, 5), max_size=5, unique=True)):
            begin = data.draw(st.integers(0, len(pool) - 1))
            values = pool[begin : begin + data.draw(st.integers(1, len(pool)))].copy()
            for at in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
                values[at] ^= 1
            tensors[f"t{number}"] = from_array(f"t{number}", values)
        keys = {"general.architecture": "x", "x.y": "z" * data.draw(st.integers(0, 200))}
        path = write_model(tmp_path / f"{name}.gguf", metadata_of(keys), tensors)
        with path.open("ab") as file:
            file.write(bytes(data.draw(st.integers(0, 3)) * 50))
        files.append(path)
    there_and_back(*files, tmp_path)


def test_found_wherever_it_stands(tmp_path: Path) -> None:
    """Bytes that begin at an odd place, behind others."""
    values = RANDOM.integers(-128, 128, 20 * MIN_SEARCH, np.int8)
    moved = np.concatenate([RANDOM.integers(-128, 128, 777, np.int8), values[3 * MIN_SEARCH + 5 :]])
    head = metadata_of({"general.architecture": "x"})
    old = write_model(tmp_path / "old.gguf", head, {"a": from_array("a", values)})
    new = write_model(tmp_path / "new.gguf", head, {"b": from_array("b", moved)})
    found = spans(Space(open_gguf(old).parts), Space(open_gguf(new).parts))
    longest = max((each for each in found if each.begin >= 0), key=lambda each: each.size)
    assert longest.begin == open_gguf(old).offsets["a"] + 3 * MIN_SEARCH + 5
    assert longest.size >= len(moved) - 777
    assert sum(each.size for each in found) == new.stat().st_size
    assert all(isinstance(each, Span) and each.size > 0 for each in found)


# Hostile


def changed(delta: Path, target: Path, change: Callable[[dict[str, Any], Metadata], None]) -> Path:
    """A delta with other keys and bytes."""
    opened = open_gguf(delta)
    metadata, arrays = opened.metadata.copy(), {name: t.elements().reshape(-1) for name, t in opened.tensors.items()}
    change(arrays, metadata)
    return write_model(target, metadata, {name: from_array(name, values) for name, values in arrays.items()})


def set_numbers(key: str, at: int, number: int) -> Callable[[dict[str, Any], Metadata], None]:
    def change(arrays: dict[str, Any], metadata: Metadata) -> None:
        numbers = np.array(metadata[key], np.uint64)
        numbers[at] = number
        metadata[key] = Value(numbers, ValueType.ARRAY, ValueType.UINT64)

    return change


def add_numbers(key: str, *numbers: int) -> Callable[[dict[str, Any], Metadata], None]:
    def change(arrays: dict[str, Any], metadata: Metadata) -> None:
        more = np.append(np.array(metadata[key], np.uint64), np.array(numbers, np.uint64))
        metadata[key] = Value(more, ValueType.ARRAY, ValueType.UINT64)

    return change


def put(key: str, value: Any) -> Callable[[dict[str, Any], Metadata], None]:
    def change(arrays: dict[str, Any], metadata: Metadata) -> None:
        if value is None:
            del metadata[key]
        else:
            metadata[key] = value if isinstance(value, Value) else Value(value, ValueType.ARRAY, ValueType.STRING)

    return change


def lose_bytes(arrays: dict[str, Any], metadata: Metadata) -> None:
    arrays[BYTES] = arrays[BYTES][1:]


def flip_a_byte(arrays: dict[str, Any], metadata: Metadata) -> None:
    arrays[BYTES] = arrays[BYTES] ^ 1


def another_tensor(arrays: dict[str, Any], metadata: Metadata) -> None:
    arrays["more"] = np.zeros(3, np.int8)


LIES = {
    "beyond the file": (set_numbers("delta.begins", 0, 1 << 40), "range 0 has .* bytes from"),
    "beyond any file": (set_numbers("delta.begins", 0, NEW - 1), "range 0 has .* bytes from"),
    "a huge range": (set_numbers("delta.sizes", 0, 1 << 62), "its ranges have|range 0 has"),
    "an empty range": (set_numbers("delta.sizes", 0, 0), "range 0 has 0 bytes"),
    "sums that wrap around": (add_numbers("delta.sizes", NEW), "beginnings of ranges"),
    "another size of the new file": (set_numbers("delta.new.sizes", 0, 1 << 50), "its ranges have"),
    "no size": (set_numbers("delta.new.sizes", 0, 0), "sizes and 1 digests"),
    "more files": (add_numbers("delta.new.sizes", 5), "2 sizes and 1 digests"),
    "another size of the old file": (set_numbers("delta.old.sizes", 0, 1 << 30), "bytes, .* is for"),
    "overlapping ranges": (set_numbers("delta.begins", 1, 5), "is not the file that it was made for"),
    "no digest": (put("delta.new.sha256", ["x"]), "something else than SHA-256"),
    "another digest": (put("delta.new.sha256", ["0" * 64]), "is not the file that it was made for"),
    "another old digest": (put("delta.old.sha256", ["0" * 64]), "is not the file that .* was made from"),
    "digests of another type": (put("delta.old.sha256", Value(5, ValueType.UINT32)), "sizes and 0 digests"),
    "another type": (put("delta.begins", ["x"]), "ARRAY/STRING; ARRAY/UINT64 is expected"),
    "no ranges": (put("delta.begins", None), "it has no 'delta.begins'"),
    "another version": (put("delta.version", Value(2, ValueType.UINT32)), "of version 2"),
    "no delta": (put("general.type", Value("model", ValueType.STRING)), "is no delta: general.type is 'model'"),
    "fewer bytes": (lose_bytes, "bytes are expected"),
    "another byte": (flip_a_byte, "is not the file that it was made for"),
    "another tensor": (another_tensor, "it has 2 tensors"),
}


@pytest.fixture(scope="module")
def delta(austen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From austen.gguf to one with another name and a layer less."""
    folder = tmp_path_factory.mktemp("delta")
    gguftools.graft(austen, folder / "short.gguf", drop_layers=[1])
    gguftools.make_patch(austen, folder / "short.gguf", folder / "delta.gguf")
    return folder / "delta.gguf"


@pytest.mark.parametrize("name", LIES)
def test_deltas_that_lie(name: str, austen: Path, delta: Path, tmp_path: Path) -> None:
    change, message = LIES[name]
    lying = changed(delta, tmp_path / "lying.gguf", change)
    with pytest.raises(FileError, match=message) as caught:
        gguftools.apply_patch(austen, lying, tmp_path / "new.gguf")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lying.gguf"]


def test_a_delta_of_another_file(austen: Path, delta: Path, tmp_path: Path) -> None:
    raw = bytearray(austen.read_bytes())
    raw[-1000] ^= 1
    (tmp_path / "other.gguf").write_bytes(raw)
    with pytest.raises(FileError, match=r"is not the file that .* was made from"):
        gguftools.apply_patch(tmp_path / "other.gguf", delta, tmp_path / "new.gguf")
    with pytest.raises(FileError, match="is no delta"):
        gguftools.apply_patch(austen, austen, tmp_path / "new.gguf")
    with pytest.raises(FileError, match="is a delta between two files"):
        gguftools.quantize(delta, "Q8_0", tmp_path / "q.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["other.gguf"]


@settings(max_examples=60, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_mutated_deltas(data: st.DataObject, austen: Path, delta: Path, tmp_path: Path) -> None:
    """Whatever is done to one: the new file, or one line."""
    raw = bytearray(delta.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(("flip", "cut", "number", "insert")))
        if how == "flip":
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del raw[at : at + data.draw(st.integers(1, 40))]
        elif how == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        else:
            raw[at : at + 8] = data.draw(st.sampled_from([0, 1, NEW, NEW - 1, 1 << 40, 1 << 63])).to_bytes(8, "little")
        raw = raw or bytearray(b"x")
    (tmp_path / "mutated.gguf").write_bytes(raw)
    (tmp_path / "new.gguf").unlink(missing_ok=True)
    with suppress(GgufToolsError):
        gguftools.apply_patch(austen, tmp_path / "mutated.gguf", tmp_path / "new.gguf")
    for path in tmp_path.iterdir():
        assert path.name != "new.gguf" or path.read_bytes() == (delta.parent / "short.gguf").read_bytes()


def test_outputs_are_no_inputs(austen: Path, delta: Path, tmp_path: Path) -> None:
    for name, source in (("old.gguf", austen), ("delta.gguf", delta)):
        (tmp_path / name).write_bytes(source.read_bytes())
    old, own = tmp_path / "old.gguf", tmp_path / "delta.gguf"
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (old, own)]
    for target in (old, own):
        with pytest.raises(OptionError, match="is read, so it cannot be written"):
            gguftools.apply_patch(old, own, target, overwrite=True)
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        gguftools.make_patch(old, own, own, overwrite=True)
    with pytest.raises(FileError, match="already exists"):
        gguftools.make_patch(austen, austen, old)
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in (old, own)] == before


def started(*words: object, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gguftools", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, stderr=pipe, stdout=pipe)


def test_two_at_once(austen: Path, delta: Path, tmp_path: Path) -> None:
    runs = [started("patch", "apply", austen, delta, "-o", "new.gguf", cwd=tmp_path) for _ in range(2)]
    said = [(run.communicate()[1], run.returncode) for run in runs]
    assert min(code for _, code in said) == 0
    assert all(code == 0 or text.count("error:") == 1 for text, code in said)
    assert (tmp_path / "new.gguf").read_bytes() == (delta.parent / "short.gguf").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["new.gguf"]


def test_kills(austen: Path, delta: Path, tmp_path: Path) -> None:
    chance, target = random.Random(3), tmp_path / "new.gguf"
    for _ in range(4):
        run = started("patch", "apply", austen, delta, "-o", target, cwd=tmp_path)
        time.sleep(chance.uniform(0.1, 0.9))
        run.send_signal(signal.SIGKILL)
        run.communicate()
        if target.exists():
            assert target.read_bytes() == (delta.parent / "short.gguf").read_bytes()
            target.unlink()


def test_the_command(austen: Path, delta: Path, tmp_path: Path) -> None:
    run = started("patch", "apply", austen, delta, "-o", "new.gguf", "--dry-run", cwd=tmp_path)
    out, _ = run.communicate()
    assert run.returncode == 0
    assert "would be" in out
    run = started("patch", "unmake", austen, delta, "-o", "new.gguf", cwd=tmp_path)
    _, err = run.communicate()
    assert (run.returncode, err.count("error:")) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_what_a_delta_says(austen: Path, delta: Path) -> None:
    found = read_delta(delta)
    assert found.old == ((austen.stat().st_size, hashlib.sha256(austen.read_bytes()).hexdigest()),)
    assert sum(size for _, size in found.ranges) == (delta.parent / "short.gguf").stat().st_size
    assert found.fresh == open_gguf(delta).tensors[BYTES].nbytes
