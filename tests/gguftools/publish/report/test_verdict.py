"""The verdict: what the figures carry, and nothing where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from gguftools.publish.report.results import Results, results_of
from gguftools.publish.report.verdict import beaten_by, verdict

FILES = {"A": (100, 0.001), "B": (80, 0.02), "C": (60, 0.3), "D": (85, 0.05)}


def results(files: dict[str, tuple[float, float]] = FILES, error: float | None = 0.001, **more: Any) -> Results:
    """Results of files: name → (MB, mean divergence)."""
    figures: dict[str, Any] = {} if error is None else {"standard_error": error}
    listed = [
        {
            "file": f"{name}.gguf",
            "type": name,
            "size_bytes": size * 10**6,
            "perplexity": 5,
            "same_top": 0.9,
            "kl_divergence": {"mean": kl, **figures},
            **more,
        }
        for name, (size, kl) in files.items()
    ]
    return results_of({"base": "base.gguf", "files": listed})


def test_a_choice_with_its_cost_and_what_to_avoid():
    lines = dict(verdict(results()))
    assert list(lines) == ["Choose", "Closer, but larger", "Only where B does not fit", "Avoid"]
    assert lines["Choose"].startswith(
        "B, the smallest file below 0.1 nats: 80.0 MB, mean KL divergence 0.0200 ± 0.0010"
    )
    assert "the base's most likely token in 90.0 % of the predictions" in lines["Choose"]
    assert lines["Closer, but larger"] == "A: 100 MB, 25 % larger, 0.00100 nats."
    assert lines["Only where B does not fit"] == "C: 60.0 MB, 25 % smaller, 0.300 nats."
    assert lines["Avoid"] == "D: B is smaller and closer to the base, 0.0200 instead of 0.0500 nats."


def test_noise_decides_nothing():
    """Within two standard errors no file is avoided, and none is closer; a limit that may be passed is."""
    lines = dict(verdict(results(error=0.02)))
    assert "Avoid" not in lines
    assert lines["Choose"].startswith("B,")
    assert "A and B" in lines["Too close to call"]
    assert "not measurably above 0" in lines["Choose"]
    assert list(dict(verdict(results({"A": (9, 0.09), "B": (8, 0.095)}, error=0.01)))) == [
        "No choice",
        "Too close to call",
    ]


def test_rounding_of_the_base_is_noise():
    files = {"A": (10, 0.00001), "B": (9, 0.00002)}
    exact, rounded = (results(files, 1e-7, **{"kl_reverse": {}}) for _ in range(2))
    for file in rounded.files:
        file.figures["kl_divergence.min"] = -0.00004
    assert "Closer, but larger" in dict(verdict(exact))
    lines = dict(verdict(rounded))
    assert "Closer, but larger" not in lines
    assert "A and B" in lines["Too close to call"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"error": None}, "Standard errors are missing"),
        ({"error": 0.0}, "too few predictions"),
        ({"lower_bound": True}, "lower bounds"),
        ({"size_bytes": None}, "Sizes are missing. Closest to the base is A"),
        ({"files": {"A": (9, 0.2), "B": (8, 0.4)}}, "No file is below 0.1 nats. The closest to the base is A"),
    ],
)
def test_no_choice_has_a_reason(given: dict[str, Any], reason: str):
    lines = verdict(results(**given))
    assert lines[0][0] == "No choice"
    assert reason in lines[0][1]


def test_of_one_file_the_cost_is_told():
    assert verdict(results({"A": (9, 0.2)})) == [
        ("Cost", "A: 9.00 MB, mean KL divergence 0.2000 ± 0.0010 nats,"
         " the base's most likely token in 90.0 % of the predictions."),
    ]  # fmt: skip


def test_many_files_are_not_all_listed():
    files = {f"F{n}": (100 - n, 0.001 * 2**n) for n in range(7)}
    assert dict(verdict(results(files, 0.0001)))["Closer, but larger"].endswith("; and 3 more.")


def test_what_beats_a_file_is_no_larger_and_closer():
    files = results({"A": (1, 3.0), "B": (2, 2.0), "C": (2, 1.0), "D": (2, 1.0), "E": (1, 3.0)}).files
    assert [better.label if (better := beaten_by(file, files)) else None for file in files] == [
        None, "C", None, None, None,
    ]  # fmt: skip
