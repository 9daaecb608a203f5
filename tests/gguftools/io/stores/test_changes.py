"""Changes of models in stores: the bytes of the same command on files, and what is sent for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.stores import retries, store
from gguftools.lab.patching.delta import BYTES
from quants.errors import FileError, OptionError

from ....conftest import ROOT
from ...command_line import run
from ...lab.patching.test_patches import changed, flip_a_byte
from ...lab.patching.test_patches import put as put_key
from ...tiny_models import metadata_of, write_model
from .conftest import SECRETS
from .test_stores import get, names, put
from .test_troubles import uploads

MIB = 1 << 20
TEMPLATE = "{% for message in messages %}" + "{# a long remark #}" * 500 + "{{ message.content }}{% endfor %}"
URL = "s3://models/large.gguf"


def written(path: Path, matrices: int) -> Path:
    random = np.random.default_rng(1)
    tensors = {f"blk.{i}.ffn_up.weight": random.standard_normal((640, 1024), np.float32) for i in range(matrices)}
    metadata = metadata_of({"general.architecture": "llama", "llama.block_count": matrices})
    return write_model(path, metadata, tensors, "F16")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 MB of F16."""
    return written(tmp_path_factory.mktemp("changes") / "large.gguf", 14)


@pytest.fixture(scope="module")
def renamed(large: Path) -> Path:
    """The same with a long name."""
    gguftools.set_metadata(
        large,
        {"general.name": "x" * 3000},
        output=large.with_name("renamed.gguf"),
        options=gguftools.EditOptions(force=True),
    )
    return large.with_name("renamed.gguf")


@pytest.fixture(scope="module")
def delta(large: Path, renamed: Path) -> Path:
    """From the one to the other, made of files."""
    gguftools.make_patch(large, renamed, large.with_name("delta.gguf"))
    return large.with_name("delta.gguf")


def rename(target: str | None = None, **more: Any) -> Any:
    return gguftools.set_metadata(
        URL, {"general.name": "x" * 3000}, output=target, **more, options=gguftools.EditOptions(force=True)
    )


def sent(log: list[list[Any]]) -> int:
    return sum(entry[4] for entry in log if entry[0] in ("PUT", "POST") and len(entry) > 4)


def test_a_template_costs_its_bytes(s3, tmp_path):
    """A template of a file of 26 MB: what S3 wants for a part, and nothing of the rest."""
    local = written(tmp_path / "large.gguf", 20)
    put(local, URL)
    for target in ("s3://models/new.gguf", None):
        before = len(s3.log)
        plan = gguftools.set_metadata(
            URL,
            [gguftools.SetChatTemplate(TEMPLATE)],
            output=target,
            dry_run=True,
            options=gguftools.EditOptions(force=True),
        )
        assert sent(s3.log[before:]) == 0
        report = gguftools.set_metadata(
            URL, [gguftools.SetChatTemplate(TEMPLATE)], output=target, options=gguftools.EditOptions(force=True)
        )
        log = s3.log[before:]
        assert sent(log) < 5.1 * MIB
        assert sum(entry[2] for entry in log if entry[0] == "GET") < 8 * MIB
        assert report.traffic == plan.traffic
        assert (report.traffic.sent, report.traffic.copied) == (5 * MIB, local.stat().st_size + 9600 - 5 * MIB)
        gguftools.set_metadata(
            local,
            [gguftools.SetChatTemplate(TEMPLATE)],
            output=tmp_path / "new.gguf",
            overwrite=True,
            options=gguftools.EditOptions(force=True),
        )
        assert get(target or URL) == (tmp_path / "new.gguf").read_bytes()
    assert not uploads()


def test_an_edit_that_fits_is_the_one_in_place(s3, large, tmp_path):
    """With slack in the header, the new version has the bytes that an edit in place gives a file."""
    local = tmp_path / "large.gguf"
    gguftools.set_metadata(large, {"general.name": "a"}, output=local, options=gguftools.EditOptions(reserve=5000))
    put(local, URL)
    for name in ("abc", "x" * 3000, "y" * 9000):
        gguftools.set_metadata(URL, {"general.name": name}, options=gguftools.EditOptions(force=True))
        gguftools.set_metadata(local, {"general.name": name}, options=gguftools.EditOptions(force=True))
        assert get(URL) == local.read_bytes()


@pytest.mark.parametrize("where", ["s3", "memory"])
def test_splitting_and_merging(request, where, large, tmp_path):
    server = request.getfixturevalue(where)
    url = put(large, f"{where}://models/large.gguf")
    gguftools.split(large, tmp_path / "part", max_size=12_000_000)
    report = gguftools.split(url, f"{where}://models/parts/part", max_size=12_000_000)
    shards = sorted(tmp_path.iterdir())
    assert names(f"{where}://models/parts") == [path.name for path in shards]
    for path in shards:
        assert get(f"{where}://models/parts/{path.name}") == path.read_bytes()
    assert [str(each.path) for each in report.shards] == [f"{where}://models/parts/{path.name}" for path in shards]
    before = len(server.log) if where == "s3" else 0
    merged = gguftools.merge(f"{where}://models/parts/{shards[1].name}")
    assert get(f"{where}://models/parts/part.gguf") == large.read_bytes()
    if where == "s3":
        assert sent(server.log[before:]) < 5.1 * MIB
        assert merged.traffic.copied > large.stat().st_size - 6 * MIB
    gguftools.merge(f"{where}://models/parts/{shards[1].name}", tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == large.read_bytes()
    gguftools.merge(shards[0], f"{where}://models/up.gguf")
    assert get(f"{where}://models/up.gguf") == large.read_bytes()
    with pytest.raises(OptionError, match="shards are freed on this disk alone"):
        gguftools.merge(f"{where}://models/parts/{shards[1].name}", free=True)
    with pytest.raises(FileError, match="already exists"):
        gguftools.split(url, f"{where}://models/parts/part", max_size=12_000_000)
    gguftools.set_metadata(f"{where}://models/parts/{shards[1].name}", {"general.name": "part"})  # any shard: the first
    gguftools.set_metadata(shards[1], {"general.name": "part"})
    assert get(f"{where}://models/parts/{shards[0].name}") == shards[0].read_bytes()


@pytest.mark.parametrize("where", ["s3", "memory"])
def test_patches(request, where, large, renamed, delta, tmp_path):
    request.getfixturevalue(where)
    old, new = put(large, f"{where}://models/old.gguf"), put(renamed, f"{where}://models/new.gguf")
    report = gguftools.make_patch(old, new, f"{where}://models/delta.gguf")
    sizes = large.stat().st_size + renamed.stat().st_size
    assert sizes <= report.traffic.read < sizes + 4 * MIB  # each once, and headers
    assert open_gguf(delta).tensors[BYTES].raw().tobytes() == (
        open_gguf(report.paths[0]).tensors[BYTES].raw().tobytes()
    )
    made = gguftools.apply_patch(old, f"{where}://models/delta.gguf", f"{where}://models/made.gguf")
    assert get(f"{where}://models/made.gguf") == renamed.read_bytes()
    if where == "s3":  # the version is known, so nothing is read to verify it
        assert made.traffic.read < 7 * MIB
        assert made.traffic.sent == 5 * MIB
    gguftools.apply_patch(old, f"{where}://models/delta.gguf", tmp_path / "down.gguf")
    gguftools.apply_patch(large, delta, f"{where}://models/up.gguf")
    assert (tmp_path / "down.gguf").read_bytes() == get(f"{where}://models/up.gguf") == renamed.read_bytes()


def test_layers_that_moved_are_found_in_stores(memory, tmp_path):
    gguftools.convert(ROOT / "examples" / "austen-4m", tmp_path / "m.gguf")
    gguftools.graft(tmp_path / "m.gguf", tmp_path / "short.gguf", drop_layers=[1])
    urls = [put(tmp_path / name, f"memory://models/{name}") for name in ("m.gguf", "short.gguf")]
    stored = gguftools.make_patch(*urls, tmp_path / "stored.gguf")
    local = gguftools.make_patch(tmp_path / "m.gguf", tmp_path / "short.gguf", tmp_path / "local.gguf")
    assert (stored.fresh, stored.ranges) == (local.fresh, local.ranges)


def test_an_old_version_is_verified(s3, large, renamed, delta, tmp_path):
    """By reading it where the delta knows no version, or by its size, if that is enough."""
    put(large, URL)
    report = gguftools.apply_patch(URL, delta, "s3://models/made.gguf")
    assert report.traffic.read >= large.stat().st_size
    assert report.warnings == [
        f"{URL} was read as a whole, {large.stat().st_size:,} bytes, to verify it; `trust` does not"
    ]
    report = gguftools.apply_patch(URL, delta, "s3://models/made.gguf", trust=True, overwrite=True)
    assert report.traffic.read < 7 * MIB
    assert get("s3://models/made.gguf") == renamed.read_bytes()
    other = bytearray(large.read_bytes())
    other[-1000] ^= 1
    store.file_system("s3").pipe_file(URL, bytes(other))
    with pytest.raises(FileError, match=r"large\.gguf is not the file that .* was made from"):
        gguftools.apply_patch(URL, delta, "s3://models/again.gguf")
    with pytest.raises(FileError, match="is not the file that it was made for") as caught:
        gguftools.apply_patch(URL, delta, tmp_path / "down.gguf")
    assert "large.gguf is not the file that it was made from, or the delta is damaged" in caught.value.hint
    assert not list(tmp_path.iterdir())
    assert names("s3://models") == ["large.gguf", "made.gguf"]


@pytest.mark.parametrize("change", [flip_a_byte, put_key("delta.sha256", None)])
def test_deltas_that_lie(s3, large, delta, tmp_path, change: Callable[..., None]):
    put(large, URL)
    lying = changed(delta, tmp_path / "lying.gguf", change)
    with pytest.raises(FileError, match=r"its SHA-256 does not match its content|has no 'delta\.sha256'"):
        gguftools.apply_patch(URL, lying, "s3://models/made.gguf", trust=True)
    assert names("s3://models") == ["large.gguf"]
    assert not uploads()


@pytest.mark.parametrize("where", ["s3", "memory"])
def test_grafts(request, where, large, renamed, tmp_path):
    request.getfixturevalue(where)
    old, new = put(large, f"{where}://models/old.gguf"), put(renamed, f"{where}://models/new.gguf")
    wanted, changes = [r"key:general\.name", r"blk\.2\."], {"drop_layers": [3, 9]}
    report = gguftools.graft(old, f"{where}://models/made.gguf", [(new, wanted)], **changes)
    gguftools.graft(large, tmp_path / "made.gguf", [(renamed, wanted)], **changes)
    made = (tmp_path / "made.gguf").read_bytes()
    assert get(f"{where}://models/made.gguf") == made
    if where == "s3":
        assert report.traffic.copied > 0.5 * len(made)
    gguftools.graft(old, tmp_path / "down.gguf", [(new, wanted)], **changes)
    assert (tmp_path / "down.gguf").read_bytes() == made


# What goes wrong


@pytest.mark.parametrize("target", [None, "s3://models/new.gguf"])
def test_a_changed_source_is_refused(s3, large, target):
    """It is another object when its ranges are copied, or when the new one gets its name."""
    for faults in ({"COPY": [{"change": 1}]}, {"POST": [{"none": 1}, {"change": 1}]}):
        put(large, URL)
        s3.faults(**faults)
        with pytest.raises(FileError, match=r"was replaced by another|was changed|already exists"):
            rename(target)
        assert not uploads()
        if target is None or "COPY" in faults:
            assert set(get(URL)) == set(b"x")
        if target and "COPY" in faults:
            assert names("s3://models") == ["large.gguf"]


def test_troubles_are_tried_again(s3, large, renamed):
    put(large, URL)
    s3.faults(
        PUT=[{"status": 503}, {"hang_up": 1}, {"status": 500}],
        POST=[{"none": 1}, {"status": 500}],
        COPY=[{"status": 503}, {"hang_up": 1}, {"status": 500}],
        GET=[{"none": 1}, {"cut": 100_000}, {"hang_up": 1}, {"status": 503}],
    )
    rename()
    assert get(URL) == renamed.read_bytes()
    assert not uploads()


def test_what_fails_leaves_nothing(s3, large, monkeypatch):
    monkeypatch.setattr(retries, "TRIES", 3)
    put(large, URL)
    for target in (None, "s3://models/new.gguf"):
        for kind in ("PUT", "COPY"):
            s3.faults(**{kind: [{"status": 500}] * 99})
            with pytest.raises(FileError, match="cannot be written: status 500"):
                rename(target)
        s3.faults()

        def progress(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rename(target, progress=progress)
        assert names("s3://models") == ["large.gguf"]
        assert get(URL) == large.read_bytes()
        assert not uploads()


def test_a_store_that_copies_no_ranges(s3, large, renamed):
    """All is sent then."""
    put(large, URL)
    before = len(s3.log)
    s3.faults(COPY=[{"status": 501}])
    report = rename("s3://models/new.gguf")
    assert get("s3://models/new.gguf") == renamed.read_bytes()
    assert (report.traffic.sent, report.traffic.copied) == (renamed.stat().st_size, 0)
    assert sent(s3.log[before:]) >= renamed.stat().st_size


def test_what_cannot_be_written_is_said(memory, large, monkeypatch):
    with pytest.raises(FileError, match="nothing is written to https:// addresses"):
        gguftools.set_metadata("https://example.com/m.gguf", {"general.name": "x"})
    with pytest.raises(OptionError, match="there is nothing to recover"):
        gguftools.set_metadata(
            "memory://models/m.gguf", {"general.name": "x"}, options=gguftools.EditOptions(recover=True)
        )
    monkeypatch.setattr("gguftools.io.gguf.copies.WORTH_A_WARNING", MIB)
    put(large, "memory://models/m.gguf")
    report = gguftools.set_metadata("memory://models/m.gguf", {"general.name": "x"})
    size = f"{large.stat().st_size - 1024:,}"[:4]
    assert [text[:92] for text in report.warnings] == [
        f"memory:// copies no ranges of these by itself: {size}{report.warnings[0][51:92]}"
    ]


def test_a_killed_change_leaves_all_as_it_was(s3, large):
    put(large, URL)
    s3.faults(PUT=[{"delay": 2}] * 50)
    line = [sys.executable, "-m", "gguftools", "set-metadata", URL, "general.name=new"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not uploads() and time.monotonic() < end:
        time.sleep(0.05)
    assert uploads() == ["large.gguf"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert get(URL) == large.read_bytes()


def test_the_commands(s3, large, delta, tmp_path):
    """What they say, and that no credential is in it."""
    put(large, URL)
    calls = [
        ["-v", "set-metadata", URL, "general.name=new"],
        ["--debug", "patch", "apply", URL, str(delta), "-o", "s3://models/made.gguf"],
        ["-v", "split", URL, "-o", "s3://nowhere/parts", "--split-max-size", "9M"],
    ]
    said = ""
    for call in calls:
        done = run(*call, cwd=ROOT)
        said += done.stdout + done.stderr
    assert "5.24 MB sent, 13.1" in said
    assert "is for" in said or "was made from" in said
    assert "there is no bucket nowhere" in said
    for secret in SECRETS.values():
        assert secret not in said, secret
