"""One scale of colours for everything on the page; missing figures are marked, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

from gguftools.publish.report import heat, page
from gguftools.publish.report.results import results_of

from .example import results, tensors

TEMPLATE = Path(page.__file__).with_name("report.html.jinja")


def test_each_step_has_a_colour_in_light_and_dark_and_a_name():
    assert len(heat.KEYS) == len(heat.EDGES) + 1
    assert [heat.step(value) for value in (0, heat.EDGES[0], 0.0999, 0.1, 1e9)] == [0, 1, 6, 7, len(heat.EDGES)]
    colours = re.findall(r"--heat-(\d+): #[0-9a-f]{6};", TEMPLATE.read_text("utf-8"))
    assert colours == 2 * [str(n) for n in range(len(heat.KEYS))]


def test_a_text_that_a_file_lacks_is_marked():
    data = results(2, passages=0)
    del data["files"][1]["texts"]["code"]
    names, rows = heat.by_text(results_of(data))
    code = names.index("code")
    assert rows[0][1][code].colour == f"h{heat.step(data['files'][0]['texts']['code']['kl_divergence']['mean'])}"
    assert rows[1][1][code] == heat.Cell("–", "none", "not in the results")


def test_grids_have_the_same_rows_and_colours_mean_the_same():
    data = results(3, passages=0)
    for number, file in enumerate(data["files"][:2], 1):
        file["tensors"] = tensors(number / 100, 6)
    del data["files"][1]["tensors"]["blk.2.attn_v.weight"]
    first, second = heat.grids(results_of(data).files)
    assert [name for name, _, _ in first.rows] == [name for name, _, _ in second.rows]
    assert first.columns == [(0, 4), (4, 2)]
    assert (first.has_missing, second.has_missing) == (False, True)
    row = next(cells for name, _, cells in second.rows if name == "attn_v")
    assert row[2] == heat.Cell("–", "none", "layer 2: unchanged in this file")
    for grid, file in ((first, data["files"][0]), (second, data["files"][1])):
        for name, _, cells in grid.rows:
            for layer, each in enumerate(cells):
                if error := file["tensors"].get(f"blk.{layer}.{name}.weight"):
                    assert each.colour == f"h{heat.step(error['relative'])}"


def test_no_tensors_no_grids():
    assert heat.grids(results_of(results(2, passages=0)).files) == []
