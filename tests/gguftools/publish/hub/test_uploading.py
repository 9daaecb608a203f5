"""Upload to a server that speaks the hub's API: what is sent, interruptions, refusals, and no token that is seen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gguftools
from gguftools import GgufToolsError, UploadOptions
from gguftools.publish.hub import checks, sending
from gguftools.publish.hub.labels import hub_label, label_warning

from ....conftest import DATA, ROOT
from ...cli.test_json_schema import problems
from ...command_line import refused, typed
from ...hub_repositories import PART, READER, TOKEN, Repositories, Stored, serving

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's, of its client
MODEL = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
NAME = "org/tiny-GGUF"
CARD = "---\nlicense: mit\nbase_model: org/tiny\n---\n# tiny\n"


SIZE = 3_000_000  # of a file that is sent in several parts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "release"
    folder.mkdir()
    shutil.copyfile(MODEL, folder / "tiny-F16.gguf")
    (folder / "README.md").write_text(CARD)
    (folder / "divergence.json").write_text("{}")
    sums(folder)
    return folder


def sums(folder: Path) -> None:
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in sorted(folder.rglob("*.gguf"))
    )
    (folder / "SHA256SUMS").write_text("".join(lines))


def large(folder: Path, size: int = SIZE) -> Path:
    """A file that is sent in several parts."""
    (folder / "extra.bin").write_bytes(np.random.default_rng(1).bytes(size))
    return folder / "extra.bin"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repositories]:
    (tmp_path / "store").mkdir()
    pause = time.sleep
    monkeypatch.setattr(sending, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(sending, "SMALL", 1 << 20)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: pause(min(seconds, 0.02)))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving(Repositories(tmp_path / "store")) as served:
        point_to(served, monkeypatch)
        yield served


def point_to(hub: Repositories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)  # read once, when it is imported


def there(hub: Repositories, branch: str = "main") -> dict[str, bytes]:
    files = hub.models[NAME].branches[branch]
    return {path: hub.content(NAME, path, branch) for path in files if path != ".gitattributes"}


def here(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def states(report: gguftools.publish.hub.uploading.UploadReport) -> dict[str, str]:
    return {each.file: each.state for each in report.files}


def test_a_new_repository_with_the_card_last(hub: Repositories, folder: Path) -> None:
    (folder / "Q8_0").mkdir()
    shutil.copyfile(MODEL.with_name("tiny-moe-f16.gguf"), folder / "Q8_0" / "tiny-Q8_0.gguf")
    sums(folder)
    report = gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)
    assert (report.created, report.revision, report.url) == (True, "main", f"{hub.address}/{NAME}")
    made = hub.models[NAME].commits
    assert [each["files"] == ["README.md"] for each in made] == [False, True]
    assert len(report.commits) == 2
    assert not hub.models[NAME].private
    assert not report.warnings


def test_a_second_upload_does_nothing(hub: Repositories, folder: Path) -> None:
    gguftools.upload(folder, NAME)
    commits, received = len(hub.models[NAME].commits), hub.received
    done = typed("upload", folder, NAME)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{NAME}, main has all files: nothing to do")
    assert (len(hub.models[NAME].commits), hub.received) == (commits, received)


def test_only_what_differs_is_sent(hub: Repositories, folder: Path) -> None:
    gguftools.upload(folder, NAME)
    received = hub.received
    (folder / "README.md").write_text(CARD + "more\n")
    (folder / "scores.txt").write_text("1")
    report = gguftools.upload(folder, NAME)
    assert states(report) == {
        "README.md": "changed",
        "SHA256SUMS": "equal",
        "divergence.json": "equal",
        "scores.txt": "new",
        "tiny-F16.gguf": "equal",
    }
    assert report.to_upload_bytes == len(CARD) + 6
    assert hub.received == received
    assert there(hub) == here(folder)


def test_a_plan_sends_nothing(hub: Repositories, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = json.loads(typed("upload", folder, NAME, "--dry-run", "--json").stdout)
    assert not problems(printed, gguftools.schema("upload"))
    assert printed["created"] is True
    assert {each["state"] for each in printed["files"]} == {"new"}
    assert "the repository would be made" in typed("upload", folder, NAME, "--dry-run").stdout
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("gguftools.publish.hub.client.get_token", lambda: None)
    assert typed("upload", folder, NAME, "--dry-run").returncode == 0  # needs no token
    assert not hub.models
    assert not [each for each in hub.asked if each.startswith(("POST", "PUT"))]


def test_files_that_are_gone_are_deleted_only_on_request(hub: Repositories, folder: Path) -> None:
    (folder / "old.txt").write_text("old")
    gguftools.upload(folder, NAME)
    (folder / "old.txt").unlink()
    assert states(gguftools.upload(folder, NAME))["old.txt"] == "only there"
    assert "old.txt" in there(hub)
    assert states(gguftools.upload(folder, NAME, UploadOptions(delete=True), dry_run=True))["old.txt"] == "deleted"
    assert "old.txt" in there(hub)
    assert states(gguftools.upload(folder, NAME, UploadOptions(delete=True, exclude="old*"))).get("old.txt") is None
    assert "old.txt" in there(hub)
    gguftools.upload(folder, NAME, UploadOptions(delete=True))
    assert there(hub) == here(folder)
    assert ".gitattributes" in hub.models[NAME].branches["main"]
    assert hub.models[NAME].commits[-1]["summary"] == "Delete files that are gone"


def test_ignored_files(hub: Repositories, folder: Path) -> None:
    for name in (".hidden", "a.gguf.partial", "a.gguf.partial.journal", "b.part", "notes.log"):
        (folder / name).write_text("x")
    (folder / ".gguftools-work").mkdir()
    (folder / ".gguftools-work" / "x.txt").write_text("x")
    os.mkfifo(folder / "pipe")
    report = gguftools.upload(folder, NAME, UploadOptions(exclude="*.log"))
    ignored = {".hidden", ".gguftools-work/", "a.gguf.partial", "a.gguf.partial.journal", "b.part", "notes.log", "pipe"}
    assert set(report.ignored) == ignored
    assert set(there(hub)) == {"README.md", "SHA256SUMS", "divergence.json", "tiny-F16.gguf"}


def test_private_branches_and_pull_requests(hub: Repositories, folder: Path) -> None:
    gguftools.upload(folder, NAME, UploadOptions(private=True))
    assert hub.models[NAME].private
    (folder / "README.md").write_text(CARD + "a branch\n")
    gguftools.upload(folder, NAME, UploadOptions(revision="v2"))
    assert there(hub, "v2")["README.md"] != there(hub)["README.md"]
    (folder / "more.txt").write_text("more")
    report = gguftools.upload(folder, NAME, UploadOptions(create_pr=True, message="Add more"))
    assert (report.pull_request, report.revision) == (f"{hub.address}/{NAME}/discussions/1", "refs/pr/1")
    assert there(hub, "refs/pr/1") == here(folder)  # both commits, in one pull request
    assert "more.txt" not in there(hub)
    assert [each["summary"] for each in hub.models[NAME].commits[-2:]] == ["Add more"] * 2
    (folder / "more.txt").write_text("another")
    gguftools.upload(folder, NAME, UploadOptions(revision="refs/pr/1"))
    assert there(hub, "refs/pr/1") == here(folder)
    hub.models[NAME].private = False
    refused(typed("upload", folder, NAME, "--private"), "is public already")
    refused(typed("upload", folder, NAME, "--revision", "refs/pr/9"), "has no pull request refs/pr/9")
    refused(typed("upload", folder, "org/other", "--create-pr"), "there is no repository org/other")


def test_large_files_in_parts_after_cut_connections(hub: Repositories, folder: Path) -> None:
    large(folder)
    hub.cuts = [100_000, 0, 500_000]
    gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)
    assert hub.parts >= SIZE // PART


def test_a_sparse_file_of_many_parts(hub: Repositories, folder: Path) -> None:
    with (folder / "sparse.bin").open("wb") as file:
        file.truncate(6 << 20)
        file.write(b"beginning")
    gguftools.upload(folder, NAME)
    assert hub.parts == 24 + 7  # and those of the model
    assert hub.content(NAME, "sparse.bin")[:9] == b"beginning"


def test_a_lost_network_says_what_is_done_and_goes_on(hub: Repositories, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(sending, "BATCH_FILES", 1)
    monkeypatch.setattr(sending, "TRIES", 2)
    large(folder)
    shutil.copyfile(folder / "extra.bin", folder / "last.bin")
    with (folder / "last.bin").open("r+b") as file:
        file.write(b"another")
    hub.down_after = SIZE + 500_000
    with pytest.raises(GgufToolsError, match=r"cannot send files: .*; 3 files are in the repository by now") as caught:
        gguftools.upload(folder, NAME)
    assert "the same call goes on from there" in (caught.value.hint or "")
    assert "secret" not in str(caught.value)
    assert set(there(hub)) == {"SHA256SUMS", "divergence.json", "extra.bin"}
    hub.down_after, received = None, hub.received
    report = gguftools.upload(folder, NAME)
    assert states(report)["extra.bin"] == "equal"
    assert hub.received - received == SIZE + MODEL.stat().st_size
    assert there(hub) == here(folder)


def test_what_was_sent_is_not_sent_again_without_its_commit(hub: Repositories, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(sending, "TRIES", 1)
    large(folder)
    hub.statuses = [500]
    with pytest.raises(GgufToolsError, match=r"cannot make a commit: status 500.*; nothing is committed"):
        gguftools.upload(folder, NAME)
    received = hub.received
    gguftools.upload(folder, NAME)
    assert hub.received == received
    assert there(hub) == here(folder)


def test_a_commit_that_times_out_but_is_made(hub: Repositories, folder: Path) -> None:
    hub.statuses, hub.lost = [504], True
    report = gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)
    assert len(hub.models[NAME].commits) == 2
    assert len(report.commits) == 1  # nobody told the other's name


def test_a_pull_request_is_not_opened_twice(hub: Repositories, folder: Path) -> None:
    hub.models[NAME] = Stored()
    hub.statuses, hub.lost = [504], True
    with pytest.raises(GgufToolsError, match="it was to open a pull request") as caught:
        gguftools.upload(folder, NAME, UploadOptions(create_pr=True))
    assert caught.value.hint == f"see whether it was opened: {hub.address}/{NAME}/discussions"
    assert set(hub.models[NAME].branches) == {"main", "refs/pr/1"}


def test_warnings_of_the_hub_about_the_card(hub: Repositories, folder: Path) -> None:
    (folder / "README.md").write_text(CARD + "odd\n")
    report = gguftools.upload(folder, NAME)
    assert report.warnings == ("Warnings while validating metadata in README.md: - odd metadata",)
    (folder / "README.md").write_text(CARD + "forbidden\n")
    with pytest.raises(GgufToolsError, match=r"Invalid metadata in README\.md.*; - bad metadata"):
        gguftools.upload(folder, NAME)


def test_busy_hubs_are_asked_again(hub: Repositories, folder: Path) -> None:
    hub.statuses = [503, 429, 500]
    gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)


def test_a_server_that_is_restarted(hub: Repositories, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large(folder)
    hub.during = lambda: setattr(hub, "down", hub.received > 2_000_000)
    hub.down_after = 2_000_000
    monkeypatch.setattr(sending, "TRIES", 1)
    with pytest.raises(GgufToolsError, match="nothing is committed"):
        gguftools.upload(folder, NAME)
    with serving(Repositories(hub.store, models=hub.models, large=hub.large)) as other:
        point_to(other, monkeypatch)
        gguftools.upload(folder, NAME)
        assert there(other) == here(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_upload_goes_on(hub: Repositories, folder: Path, number: int) -> None:
    large(folder, 12_000_000)
    hub.during = lambda: time.sleep(0.05)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", "gguftools", "upload", str(folder), NAME]
    with subprocess.Popen(call, env=environment, stderr=subprocess.PIPE) as process:
        while hub.received < 4_000_000 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"Traceback" not in said
    assert number == signal.SIGKILL or b"goes on from there" in said
    hub.during = None
    gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)


def test_a_file_that_is_changed_meanwhile(hub: Repositories, folder: Path) -> None:
    extra = large(folder)

    def change() -> None:
        hub.during = None
        os.utime(extra, ns=(1, 1))

    hub.during = change
    with pytest.raises(GgufToolsError, match=r"extra\.bin was changed while it was uploaded"):
        gguftools.upload(folder, NAME)
    assert not there(hub)
    gguftools.upload(folder, NAME)
    assert there(hub) == here(folder)


def test_tokens_that_are_missing_wrong_or_may_only_read(hub: Repositories, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrongwrong")
    refused(typed("upload", folder, NAME), "does not accept HF_TOKEN", "hf auth login", "/settings/tokens")
    monkeypatch.setenv("HF_TOKEN", READER)
    refused(typed("upload", folder, NAME), "the token of jane may only read")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    refused(typed("upload", folder, "google/tiny"), "the token may not do that", "namespaces jane, org")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("gguftools.publish.hub.client.get_token", lambda: None)
    refused(typed("upload", folder, NAME), "there is no token", "hf auth login")
    assert not hub.models


def test_repositories_of_other_types(hub: Repositories, folder: Path) -> None:
    hub.others[NAME] = "dataset"
    refused(typed("upload", folder, NAME), f"{NAME} is a dataset, not a model")
    hub.models[NAME] = Stored()
    assert typed("upload", folder, NAME).returncode == 0


@pytest.mark.parametrize("token", [TOKEN, "hf_wrongwrongwrongwrong", "hf_odd\x01oddoddoddodd", "hf_ääääääääääää"])
def test_the_token_is_never_printed(hub: Repositories, folder: Path, token: str, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    large(folder)
    hub.cuts, hub.statuses = [1000], [503, 403]
    for words in (["upload", folder, NAME], ["upload", folder, NAME, "--verbose"], ["upload", folder, "x/y", "--json"]):
        done = typed(*words)
        for text in (done.stdout, done.stderr):
            assert token not in text
            assert token[3:] not in text
            assert "signature=secret" not in text
            assert "Traceback" not in text
    with pytest.raises(GgufToolsError) as caught:
        gguftools.upload(folder, "x/y")
    assert token not in "".join(traceback.format_exception(caught.value))  # which --debug prints
    for path in folder.parent.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes()


@pytest.mark.parametrize("words", [[NAME, TOKEN], [NAME, "--token", TOKEN], [NAME, f"--token={TOKEN}"], [TOKEN]])
def test_a_token_that_is_typed_is_not_repeated(folder: Path, words: list[str]) -> None:
    done = typed("upload", folder, *words)
    assert done.returncode in (1, 2)
    assert TOKEN not in done.stderr
    assert "--token" not in " ".join(words) or "HF_TOKEN" in done.stderr


WRONG_FOLDERS = {
    "a damaged GGUF": ("tiny-F16.gguf", b"GGUF\x03\0\0\0damaged", "is no sound GGUF file"),
    "a digest": ("SHA256SUMS", b"0" * 64 + b"  tiny-F16.gguf\n", "SHA256SUMS has 0000000000000000"),
    "a digest of what is not there": ("SHA256SUMS", b"0" * 64 + b"  other.gguf\n", "lists other.gguf"),
    "no digest": ("SHA256SUMS", b"tiny-F16.gguf\n", "line 1 is not SHA256  NAME"),
    "no YAML": ("README.md", b"---\nlicense: [mit\n---\n", "its front matter is not valid"),
    "a list as YAML": ("README.md", b"---\n- mit\n---\n", "its front matter is not valid"),
    "results without a name": ("README.md", b"---\nmodel-index: 3\n---\n", "its front matter is not valid"),
}


@pytest.mark.parametrize("name", WRONG_FOLDERS)
def test_folders_that_fail_a_check(hub: Repositories, folder: Path, name: str) -> None:
    file, content, words = WRONG_FOLDERS[name]
    (folder / file).write_bytes(content)
    refused(typed("upload", folder, NAME), file, words)
    assert not hub.models


def test_files_that_are_not_sound_on_request(hub: Repositories, folder: Path) -> None:
    (folder / "tiny-F16.gguf").write_bytes(b"GGUF of a fork")
    sums(folder)
    refused(typed("upload", folder, NAME), "is no sound GGUF file", "--no-check uploads it anyway")
    done = typed("upload", folder, NAME, "--no-check")
    assert done.returncode == 0
    assert "warning:" in done.stderr
    assert there(hub) == here(folder)


def test_sizes_that_the_hub_does_not_take(hub: Repositories, folder: Path, monkeypatch) -> None:
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(501 * 10**9)
    refused(typed("upload", folder, NAME), "huge.bin has 501,000,000,000 bytes", "gguftools split")
    monkeypatch.setattr(checks, "ADVISED_BYTES", 1000)
    (folder / "huge.bin").unlink()
    assert "the hub advises less than" in typed("upload", folder, NAME, "--dry-run").stderr


def test_warnings_of_names_and_of_a_missing_card(hub: Repositories, folder: Path) -> None:
    (folder / "tiny-F16.gguf").rename(folder / "tiny-Q4_K_L.gguf")
    (folder / "README.md").unlink()
    shutil.copyfile(MODEL, folder / "tiny-IQ2_KS.gguf")
    (folder / "SHA256SUMS").unlink()
    said = typed("upload", folder, NAME, "--dry-run").stderr
    assert "tiny-Q4_K_L.gguf: the hub knows no label" in said
    assert "tiny-IQ2_KS.gguf: the hub reads Q2_K" in said
    assert "there is no README.md" in said


def test_labels_are_the_hubs() -> None:
    expected = {
        "m-Q4_K_M.gguf": "Q4_K_M",
        "m.q8_0.gguf": "Q8_0",
        "m-UD-Q4_K_XL-00001-of-00002.gguf": "UD-Q4_K_XL",
        "BF16/m-BF16.gguf": "BF16",
        "m-Q6_K_L.gguf": "Q6_K_L",
        "m-Q2_K_L.gguf": "Q2_K_L",
        "m-mxfp4_moe.gguf": "MXFP4_MOE",
        "m-IQ4_XS.gguf": "IQ4_XS",
        "m-NVFP4.gguf": "NVFP4",
        "m-Q4_K_L.gguf": None,
        "m-Q3_K.gguf": None,
        "m-IQ4_KSS.gguf": None,
        "m-IQ2_KS.gguf": "Q2_K",
        "Q4_0-m-Q8_0.gguf": "Q8_0",
    }
    assert {name: hub_label(name) for name in expected} == expected
    assert [name for name in expected if label_warning(name)] == [
        "m-Q4_K_L.gguf",
        "m-Q3_K.gguf",
        "m-IQ4_KSS.gguf",
        "m-IQ2_KS.gguf",
    ]


def test_progress_counts_every_byte_once(hub: Repositories, folder: Path) -> None:
    large(folder)
    seen: list[tuple[int, int, str]] = []
    report = gguftools.upload(folder, NAME, progress=lambda *now: seen.append(now))
    sent = [done for done, _, name in seen if not name.startswith("check ")]
    assert sent == sorted(sent)
    assert sent[-1] == report.to_upload_bytes
    assert all(done <= total for done, total, _ in seen)


def test_xet_reports_to_our_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub has the bars whose place is taken, and calls them so."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(sending, "uses_xet", lambda: True)
    from huggingface_hub.utils import _xet_progress_reporting as theirs

    name = next(each for each in sending.REPORTERS if hasattr(theirs, each))
    before, sent = getattr(theirs, name), sending.Sent(100)
    assert callable(before.update_progress)
    sent.begin(100)
    with sending.own_progress(sent):
        reporter = getattr(theirs, name)()
        reporter.update_progress(SimpleNamespace(total_bytes_completed=40), [SimpleNamespace(item_name="a/b.gguf")])
        assert (sent.bytes, sent.file) == (40, "b.gguf")
        reporter.update_progress(SimpleNamespace(), {})
        reporter.close(False)
    assert getattr(theirs, name) is before


def test_what_was_uploaded_is_fetched(hub: Repositories, folder: Path) -> None:
    gguftools.upload(folder, NAME)
    gguftools.fetch(NAME, "back", include="*")
    back = here(Path("back"))
    del back[".gguftools-fetch.json"], back[".gitattributes"]
    assert back == here(folder)


def test_quiet_prints_the_address(hub: Repositories, folder: Path) -> None:
    done = typed("upload", folder, NAME, "-q")
    assert (done.stdout, done.stderr) == (f"{hub.address}/{NAME}\n", "")
