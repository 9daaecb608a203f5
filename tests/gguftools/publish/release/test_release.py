"""A release: what is in the folder, what a second run does, and what a killed one leaves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import gguftools
from gguftools.publish.names import hub_label
from gguftools.publish.release.release import release
from gguftools.publish.release.settings import LADDERS, ReleaseOptions, read_settings, settings_of
from quants.errors import FileError, GgufToolsError, OptionError
from tests.archs.checkpoints import ENCODERS, build
from tests.conftest import ROOT
from tests.gguftools.hub_server import Hub, serving

SOURCE = ROOT / "examples" / "austen-4m"
OPTIONS = ReleaseOptions(
    ladder="",
    recipes=("Q8_0", "Q4_K_M", "Q2_K_S"),
    imatrix=str(ROOT / "examples" / "persuasion.txt"),
    imatrix_chunks=2,
    texts=(f"novel={ROOT / 'examples' / 'persuasion.txt'}",),
    chunks=2,
    base_model="org/austen-4m",
    repository="me/austen-4m-GGUF",
)
KILLED = """
import os, signal, sys
from tests.gguftools.publish.release.test_release import OPTIONS, SOURCE, release
calls = 0
def count(part, done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
release(SOURCE, sys.argv[1], options=OPTIONS, threads=2, progress=count)
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "austen-4m-GGUF"
    release(SOURCE, folder, options=OPTIONS, threads=2)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the published files' bytes, without what differs by where and when they were made."""
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.is_file()}


def test_the_folder_has_all_that_is_published(released: Path) -> None:
    names = {each.name for each in released.iterdir()}
    models = {f"austen-4m-{recipe}.gguf" for recipe in OPTIONS.recipes}
    assert models | {"austen-4m-imatrix.gguf", "README.md", "SHA256SUMS", "divergence.json", "report.html"} <= names
    assert {"Modelfile", "params", "release.toml"} <= names
    assert {f"{each}.manifest.json" for each in models} | {f"{each}.intoto.json" for each in models} <= names
    assert [hub_label(f"austen-4m-{recipe}.gguf") for recipe in OPTIONS.recipes] == list(OPTIONS.recipes)


def test_checksums_are_right(released: Path) -> None:
    lines = [line.split("  ") for line in (released / "SHA256SUMS").read_text().splitlines()]
    assert len(lines) > 10
    for digest, name in lines:
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


def test_the_card_has_figures_and_front_matter(released: Path) -> None:
    card = ModelCard.load(released / "README.md")
    assert card.data.base_model == "org/austen-4m"
    assert card.data.base_model_relation == "quantized"
    results = json.loads((released / "divergence.json").read_text())
    by_name = {each["file"]: each for each in results["files"]}
    assert set(by_name) == {f"austen-4m-{recipe}.gguf" for recipe in OPTIONS.recipes}
    assert "llama-server -hf me/austen-4m-GGUF:Q4_K_M" in card.text
    assert f"{100 * by_name['austen-4m-Q8_0.gguf']['same_top']:.2f} %" in card.text
    assert str(ROOT) not in card.text + json.dumps(results)


def test_a_second_run_does_nothing(released: Path) -> None:
    before = {
        each: each.stat().st_mtime_ns for each in released.rglob("*") if each.is_file() and each.name != "done.json"
    }
    again = release(SOURCE, released, options=OPTIONS, threads=2)
    assert not again.made
    assert {each: each.stat().st_mtime_ns for each in before} == before


def test_a_file_that_was_removed_is_made_again(released: Path) -> None:
    file = released / "austen-4m-Q2_K_S.gguf"
    before = file.read_bytes()
    file.unlink()
    again = release(SOURCE, released, options=OPTIONS, threads=2)
    assert again.made == ["austen-4m-Q2_K_S.gguf"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("call", [2, 9])
def test_a_killed_run_is_gone_on_with(released: Path, tmp_path: Path, call: int) -> None:
    check_killed(released, tmp_path, [call])


@pytest.mark.slow
def test_ten_kills(released: Path, tmp_path: Path) -> None:
    check_killed(released, tmp_path, [1, 2, 3, 4, 6, 8, 3, 5, 2, 1])


def check_killed(released: Path, tmp_path: Path, calls: list[int]) -> None:
    folder = tmp_path / "austen-4m-GGUF"
    for call in calls:
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(call)], cwd=ROOT, env=os.environ)
        assert done.returncode in (-signal.SIGKILL, 0)
    release(SOURCE, folder, options=OPTIONS, threads=2)
    assert contents(folder) == contents(released)


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    report = release(SOURCE, tmp_path / "new", options=ReleaseOptions(ladder="small"), dry_run=True)
    assert [each["recipe"] for each in report.plan["files"]] == list(LADDERS["small"])
    assert report.plan["size_bytes"] > 1e6
    assert not (tmp_path / "new").exists()


def test_a_file_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "austen-4m-Q8_0.gguf"
    mine.write_text("mine")
    with pytest.raises(FileError, match="is there already"):
        release(SOURCE, tmp_path, options=OPTIONS)
    assert mine.read_text() == "mine"


def test_large_files_are_split_into_folders(tmp_path: Path) -> None:
    options = ReleaseOptions(
        ladder="", recipes=("Q8_0", "Q4_K_M"), imatrix="none", split_max_size=3_000_000, skip=("measure",)
    )
    release(SOURCE, tmp_path, options=options, threads=2)
    assert sorted(each.name for each in (tmp_path / "Q8_0").glob("*.gguf")) == [
        "austen-4m-Q8_0-00001-of-00002.gguf",
        "austen-4m-Q8_0-00002-of-00002.gguf",
    ]
    assert (tmp_path / "austen-4m-Q4_K_M.gguf").is_file()
    assert gguftools.validate(tmp_path / "Q8_0" / "austen-4m-Q8_0-00001-of-00002.gguf").ok
    assert "2 shards" in (tmp_path / "README.md").read_text()


def test_recipes_that_need_a_matrix_are_named_without_one(tmp_path: Path) -> None:
    options = ReleaseOptions(ladder="", recipes=("Q8_0", "IQ2_XXS"), imatrix="none")
    report = release(SOURCE, tmp_path / "new", options=options, dry_run=True)
    assert report.warnings == ["without an importance matrix IQ2_XXS cannot be made"]


def test_a_quantized_source_is_refused(released: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has weights in"):
        release(released / "austen-4m-Q4_K_M.gguf", tmp_path / "new")


def test_settings_are_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(OPTIONS.toml("org/model"))
    assert read_settings(file) == ("org/model", OPTIONS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ladder = 'huge'", "no ladder 'huge'"),
        ("laddder = 'small'", "no setting 'laddder'"),
        ("chunks = 'many'", "chunks is 'many'"),
        ("chunks = 0", "chunks is 0"),
        ("skip = ['cards']", "no part 'cards'"),
        ("recipes = ['Q9_K']", "no recipe 'Q9_K'"),
        ("only = ['card']\nskip = ['sums']", "exclude each other"),
        ("source = 3", "source is 3"),
        ("a = [", "is no TOML"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "release.toml"
    file.write_text(text)
    with pytest.raises(GgufToolsError, match=words):
        read_settings(file)


def test_settings_of_another_type_are_refused() -> None:
    values: dict[str, Any] = {"manifests": 1}
    with pytest.raises(OptionError, match="manifests is 1"):
        settings_of(values)


def test_a_model_on_the_hub_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", texts=OPTIONS.texts, chunks=2)
    with serving(Hub({"org/austen-4m": SOURCE})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        release("hf://org/austen-4m", tmp_path / "new", options=options, threads=2)
        again = release("hf://org/austen-4m", tmp_path / "new", options=options, threads=2)
        weights = [request for request, sent in hub.requests if "safetensors" in request and sent > 1e6]
    assert not again.made
    assert weights
    assert ModelCard.load(tmp_path / "new" / "README.md").data.base_model == "org/austen-4m"
    assert not (tmp_path / "new" / ".release" / "austen-4m").exists()


def test_a_model_with_encoders_has_both_files(tmp_path: Path) -> None:
    source = tmp_path / "smolvlm"
    build("smolvlm", source)
    shutil.copy(ENCODERS / "smolvlm" / "preprocessor_config.json", source)
    options = ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", skip=("measure",))
    report = release(source, tmp_path / "new", options=options, threads=2)
    assert report.made[:2] == ["mmproj", "smolvlm-Q8_0.gguf"]
    card = ModelCard.load(tmp_path / "new" / "README.md")
    assert card.data.pipeline_tag == "image-text-to-text"
    assert "--mmproj mmproj-smolvlm-BF16.gguf" in card.text
    assert "not measured" in card.text
    assert "name no license" in card.text


@pytest.mark.parametrize("name", ["SHA256SUMS", "Modelfile", "divergence.json", "austen-4m-imatrix.gguf", "README.md"])
def test_no_file_of_someone_else_is_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileError, match=r"is there already|no generated blocks"):
        release(SOURCE, tmp_path, options=OPTIONS)
    assert (tmp_path / name).read_text() == "mine"
    assert not list(tmp_path.glob("*.gguf.manifest.json"))


def test_the_source_is_no_output(tmp_path: Path) -> None:
    source = tmp_path / "austen-4m"
    shutil.copytree(SOURCE, source)
    with pytest.raises(OptionError, match="is the source"):
        release(source, source, options=OPTIONS)


def test_a_card_leaves_a_modelfile_that_differs(released: Path, tmp_path: Path) -> None:
    shutil.copy(released / "austen-4m-Q8_0.gguf", tmp_path)
    (tmp_path / "Modelfile").write_text("FROM mine")
    report = gguftools.card(tmp_path)
    assert (tmp_path / "Modelfile").read_text() == "FROM mine"
    assert any("Modelfile differs" in each for each in report.warnings)
    gguftools.card(tmp_path, options=gguftools.CardOptions(overwrite=True))
    assert (tmp_path / "Modelfile").read_text() != "FROM mine"
