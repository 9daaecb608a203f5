"""What is written in charts: names of files, units, axes."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from gguftools.publish.report import charts
from gguftools.publish.report.results import Curve, results_of

from .example import results


@pytest.fixture(scope="module")
def files():
    return results_of(results(3)).files


@pytest.fixture(autouse=True)
def drawing():
    with charts.drawing():
        yield


def words(svg: str) -> list[str]:
    """What is written in a chart."""
    return [unescape(re.sub(r"<[^>]*>", "", each)).strip() for each in re.findall(r"<text.*?</text>", svg, re.DOTALL)]


@pytest.mark.parametrize(
    "draw",
    [charts.frontier, charts.distributions, charts.changes, charts.by_position, charts.settling],
    ids=lambda draw: draw.__name__,
)
def test_each_file_has_its_name(draw, files):
    written = words(draw(files))
    assert [each for each in written if each in ("Q8_0", "Q6_K", "Q5_K_M")] != []
    assert {file.label for file in files} <= set(written)
    assert draw([]) == ""


@pytest.mark.parametrize(
    ("size", "unit"), [(4e9, "GB"), (1e9, "GB"), (3e6, "MB"), (5e3, "kB"), (1e3, "kB"), (12.0, "bytes")]
)
def test_the_unit_of_sizes(size, unit, files):
    sized = [replace(file, figures={**file.figures, "size_bytes": size / 2**i}) for i, file in enumerate(files)]
    assert f"size of the file in {unit}" in words(charts.frontier(sized))


def test_an_edge_that_is_missing_follows_from_those_before(files):
    curve = Curve([64.0, 80.0, 96.0, 112.0], [0.3, 0.2, 0.1])

    def drawn(curve):
        return charts.by_position([replace(files[0], positions=curve)])

    assert drawn(replace(curve, edges=curve.edges[:3])) == drawn(curve)
    assert drawn(replace(curve, edges=[64.0, 80.0, 90.0])) != drawn(curve)
