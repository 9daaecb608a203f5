"""Set up the suite: the folder of test data, the order of test files, removal of temporary files.

All data is in tests/data. On Linux nothing may skip: a skipped test is a failure there.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"
SHARED = DATA  # of recorded truths: zoo, golden, vocabs
NOTHING_SKIPS = sys.platform == "linux"

# Files that take longest (10 s of a processor or more). Who takes the last file keeps the others waiting, so that these
# come first, and many short ones last.
LONGEST = (
    "test_docs.py",
    "gguftools/io/stores/test_changes.py",
    "gguftools/io/stores/test_troubles.py",
    "gguftools/io/stores/test_stores.py",
    "gguftools/lab/grafting/test_assembly.py",
    "gguftools/conversion/test_transcoding.py",
    "test_zoo.py",
    "gguftools/conversion/test_encoders.py",
    "gguftools/conversion/test_image_layouts.py",
    "gguftools/calibration/test_target.py",
    "gguftools/calibration/test_feedback.py",
    "gguftools/lab/drafts/test_check.py",
    "gguftools/measurement/test_kills.py",
    "gguftools/measurement/test_importance.py",
    "gguftools/test_gate.py",
    "gguftools/test_generate.py",
    "gguftools/test_speculation.py",
    "gguftools/measurement/test_workers.py",
    "gguftools/metadata/test_template_attacks.py",
    "test_options.py",
    "gguftools/lab/reproduction/test_rerun.py",
    "gguftools/measurement/test_perplexity.py",
    "archs/test_more_families.py",
    "gguftools/publish/report/test_page.py",
    "gguftools/writing/test_clusters.py",
    "gguftools/writing/test_executors.py",
    "gguftools/conversion/test_export.py",
    "archs/test_options.py",
    "gguftools/io/stores/test_large.py",
    "runtime/kernels/test_environments.py",
    "gguftools/io/checkpoint/test_hub_answers.py",
    "gguftools/publish/hub/test_fetching.py",
    "gguftools/publish/hub/test_uploading.py",
    "gguftools/measurement/test_texts.py",
    "gguftools/inspection/test_audit.py",
    "gguftools/conversion/test_packed_checkpoints.py",
    "gguftools/measurement/test_evaluation.py",
    "gguftools/measurement/test_divergence.py",
    "gguftools/calibration/test_row_tasks.py",
    "fuzz/test_concurrency.py",
    "fuzz/test_set_kills.py",
    "runtime/test_absent_keys.py",
    "gguftools/conversion/test_whole_files.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let no test wait for the disk (8,000 times, half a minute): what is written need not outlive a power cut. Let
    xdist take files in the order of `LONGEST`, where it would begin with those of most tests, the quickest.
    """
    os.fsync = lambda fd: None
    gc.disable()  # until all tests are collected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a shell runs the suite in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that tests interrupt would never end
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    draw_the_same()


def draw_the_same() -> None:
    """Let hypothesis draw the same in each run, so that none fails by chance, and take its time on a slow machine;
    `--hypothesis-profile random` draws anew.
    """
    from hypothesis import HealthCheck, settings

    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same", settings.get_profile("random"), derandomize=True)
    settings.load_profile("same")


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start one more than there are processors: tests of kills, servers and pipes wait for others."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {DATA.parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have each worker of xdist import the files of tests from another place on. The first to import a file rewrites
    its assertions, which takes most of the time, and the others load what it wrote.
    """
    config = session.config
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:  # a part of the suite
        return
    files = sorted(DATA.parent.rglob("test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*files[begin:], *files[:begin]):
        with contextlib.suppress(Exception):  # which collecting it will show
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what stays, half a million objects, also in processes that are forked, and
    look for cycles of new ones less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    """Remove what a file of tests wrote when its last test has ended, unless one of them failed.

    Fixtures of a session write nothing below this folder, so that all of it belongs to the file.
    """
    yield
    if (nextitem is None or nextitem.path != item.path) and not item.session.testsfailed:
        folder = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for path in folder.iterdir():
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _watched_hints() -> None:
    """Let no test pass in which a hint names a command or an option that there is not."""
    from . import hints

    hints.watch()


WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


@pytest.fixture(scope="session", autouse=True)
def _vocabularies_compared_once() -> Iterator[None]:
    """Let conversions compare a vocabulary with a checkpoint's tokenizer once, not in each of a thousand conversions:
    where both are the same again and there was nothing to say.
    """
    module = importlib.import_module("gguftools.conversion.convert")
    compared, agreed = module._compare_tokenizer, set[bytes]()

    def compared_once(metadata: Mapping[str, Any], folder: Path) -> str:
        found = hashlib.sha256()
        for name in metadata:
            if name.startswith("tokenizer."):
                value = metadata[name]
                said = repr(value.tolist() if isinstance(value, np.ndarray) else value)  # arrays say not all
                found.update(f"{name}={said};".encode(errors="surrogatepass"))
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.suffix not in WEIGHTS:
                found.update(f"{path.relative_to(folder)}:{path.stat().st_size};".encode())
                found.update(path.read_bytes())
        if found.digest() in agreed:
            return ""
        told: str = compared(metadata, folder)
        if not told:
            agreed.add(found.digest())
        return told

    module._compare_tokenizer = compared_once  # type: ignore[attr-defined]
    yield
    module._compare_tokenizer = compared  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of recorded truths."""
    return SHARED


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    outcome = yield
    report = outcome.get_result()
    if NOTHING_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"every test must run here, and this one was skipped: {report.longrepr}"
