"""`gguftools divergence`: its tables, its JSON, its exit codes."""

from __future__ import annotations

import json
import sys

import pytest

import gguftools

from .command_line import EXAMPLE, TEXT, typed

WINDOWS = ("-f", TEXT, "-c", 64, "--chunks", 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    base = gguftools.convert(EXAMPLE, folder / "base.gguf", "F16").outputs[0].file
    return [base, *(gguftools.quantize(base, each, folder).outputs[0].file for each in ("Q8_0", "Q4_0"))]


def test_tables(files):
    done = typed("divergence", *files, *WINDOWS, "--worst", 2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for label in ("PPL(file)  ", "KL(base ‖ file)", "acceptance", "RMS Δp", "same top token", "99.9 %", "median"):
        assert sum(line.startswith(label) for line in lines) == 2, label
    table = lines[lines.index("all files") :]
    assert [line.split()[0] for line in table[2:4]] == ["base-Q8_0.gguf", "base-Q4_0.gguf"]
    assert sum(line.startswith("KL 0.") for line in lines) == 4
    assert lines[-1].startswith("2 windows of 64 tokens, 62 predictions")


def test_json_has_every_figure(files):
    done = typed("divergence", *files, *WINDOWS, "--json")
    assert done.returncode == 0, done.stderr
    file = json.loads(done.stdout)["files"][1]
    assert file["file"] == str(files[2])
    of_kl = "mean standard_error max p99_9 p99 p95 p90 median p10 p5 p1 p0_1 min"
    assert sorted(file["kl_divergence"]) == sorted(of_kl.split())
    assert sorted(file["p_change"]) == sorted([*of_kl.split(), "p75", "p25", "rms", "rms_standard_error"])
    assert 0 < file["kl_divergence"]["mean"] < file["kl_divergence"]["max"]
    assert file["lower_bound"] is False


def test_limits_decide_the_exit_code(files):
    assert typed("divergence", *files, *WINDOWS, "--fail-above", "mean=9,max=9").returncode == 0
    done = typed("divergence", *files, *WINDOWS, "--fail-above", "mean=0.002", "--json")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "Q4_0.gguf: mean KL divergence is 0.0" in done.stderr
    assert json.loads(done.stdout)["files"]


def test_a_base_is_saved_and_read(files, tmp_path):
    base = tmp_path / "base.kld"
    done = typed("divergence", files[0], "--save-base", base, *WINDOWS)
    assert done.returncode == 0, done.stderr
    live, stored = (
        json.loads(typed("divergence", each, files[2], *rest, "--json").stdout)["files"][0]["kl_divergence"]["mean"]
        for each, rest in ((files[0], WINDOWS), (base, ()))
    )
    assert stored == pytest.approx(live, rel=0.02)
    done = typed("divergence", base, files[2], "-c", 128)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the base was stored with windows of 64 tokens, not 128")


def test_a_device_needs_torch(files, monkeypatch):
    monkeypatch.delitem(sys.modules, "runtime.device.torch_device", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = typed("divergence", *files[:2], *WINDOWS, "--device", "cpu")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "error: device 'cpu' needs torch, which is not installed"
    assert lines[1].endswith('install the extra: pip install "gguftools[device]"')
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--device", "gpu"), "gpu"),
        (("--device-memory", "2G"), "--device-memory needs --device"),
        (("--fast",), "--fast needs --device"),
        (("--device", "cpu", "--workers", 2), "--device cannot be combined with --workers"),
    ],
)
def test_wrong_devices(options, problem, files):
    done = typed("divergence", *files[:2], *WINDOWS, *options)
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.device
def test_a_device_and_its_noise_floor_are_printed(files, tmp_path):
    page = tmp_path / "report.html"
    done = typed("divergence", *files[:2], *WINDOWS, "--device", "cpu", "--html", page)
    assert done.returncode == 0, done.stderr
    *_, measured, noise = done.stdout.splitlines()
    assert measured.endswith("products in float32 on the processor (torch)")
    assert noise.startswith("noise floor ")
    assert noise.endswith("(the processor (torch), float32)")
    html = page.read_text(encoding="utf-8")
    assert "the processor (torch)" in html
    assert "noise floor" in html
    report = json.loads(typed("divergence", *files[:2], *WINDOWS, "--device", "cpu", "--json").stdout)
    assert report["device"] == "the processor (torch)"
    assert 0 <= report["noise_floor"] <= report["noise_floor_max"] < 1e-9
    done = typed("perplexity", files[1], *WINDOWS, "--device", "cpu")
    assert "noise floor " in done.stdout
