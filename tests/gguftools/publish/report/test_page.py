"""The page: well-formed, complete, of itself, whatever the results hold; and in a real browser."""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gguftools.metadata.visible import UNSEEN
from gguftools.publish.report.page import check_html_target, html, write_html
from quants.errors import FileError, GgufToolsError, OptionError

from ...command_line import EXAMPLE, typed
from .example import PASSAGE, results, tensors

VOID = {"meta", "link", "br", "img", "input", "hr"}
FOREIGN = {"path", "use", "rect", "circle", "line", "stop"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page(HTMLParser):
    """What a page is made of; its end tags must close what is open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.values: list[str] = []
        self.used: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.values.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on")
            self.used += re.findall(r"url\(#(.*?)\)", value or "")
            if name.endswith("href"):
                self.used += [value[1:]] if value and value.startswith("#") else []
            if name in ("aria-labelledby", "aria-describedby"):
                self.used += (value or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def extreme(change: str) -> dict[str, Any]:
    """Results that have something that real ones seldom have."""
    data = results(3, passages=2)
    first = data["files"][0]
    if change == "no divergence":
        for each in data["files"]:
            each["kl_divergence"] = dict.fromkeys(each["kl_divergence"], 0.0)
            each["chunks"] = [0.0, 0.0]
            each["positions"]["kl_mean"] = [0.0] * 16
            each["histogram"]["counts"] = [900, *[0] * 47]
            for text in each["texts"].values():
                text["kl_divergence"]["mean"] = 0.0
    elif change == "infinite":
        first |= {"perplexity": math.inf, "perplexity_ratio": math.inf, "perplexity_standard_error": math.nan}
        first["kl_divergence"]["mean"] = math.inf
        first["chunks"] = [math.inf, math.nan]
    elif change == "a lower bound":
        first["lower_bound"] = True
    elif change == "next to nothing":
        data = {"base": "b.gguf", "files": [{"path": "a.gguf", "perplexity": 3, "kl_divergence": {"mean": 0.1}}]}
    elif change == "names that hurt":
        data["base"] = '/x/<script>alert(1)</script>"\x1b[31m\u202e.gguf'
        first |= {"path": '$\\frac{$ id="a" #000101 日本 <img src=http://x.example/>.gguf', "type": ""}
        first["tensors"] = {"blk.0.<b>\u202e.weight": {"relative": 0.1}, "blk.1.x": {"relative": 0.2, "sqnr": 3.0}}
        first["texts"] = {"<i>\u202e": {"kl_divergence": {"mean": 0.1}}, "b": {"kl_divergence": {"mean": 0.2}}}
    elif change == "the same name thrice":
        for each in data["files"]:
            each |= {"path": "a/model.gguf", "type": ""}
    elif change == "tensors":
        for number, each in enumerate(data["files"], 1):
            each["tensors"] = tensors(number / 100, 12)
    return data


CASES = (
    "no divergence",
    "infinite",
    "a lower bound",
    "next to nothing",
    "names that hurt",
    "the same name thrice",
    "tensors",
)


def checked(text: str) -> Page:
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.used) <= set(page.ids)
    assert "script" not in page.tags
    assert not [value for value in page.values if re.search(r"^(https?:)?//", value.strip())]
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"\b(nan|inf|None)\b", page.text)
    assert not [found for found in UNSEEN.findall(text) if found not in "\n\t"]
    assert page.tags.count("svg") == page.tags.count("desc")
    assert page.tags.count("table") == page.tags.count("caption")
    return page


def test_a_page_that_could_not_be_written_is_known_before(tmp_path):
    target = tmp_path / "report.html"
    check_html_target(target)
    target.write_text("mine")
    check_html_target(target, overwrite=True)
    with pytest.raises(FileError, match="already exists"):
        check_html_target(target)
    with pytest.raises(OptionError, match="is read, so it cannot be written") as caught:
        check_html_target(target, overwrite=True, reads=[target])
    assert caught.value.hint == "name another `html`"


def test_passages_say_where_they_are():
    data = results(1, passages=3)
    for number, worst in enumerate(data["files"][0]["worst"]):
        worst.update(text="novel", window=number, position=70 + number)
    del data["files"][0]["worst"][2]["window"]
    text = html(data)
    for place in ("novel, window 1, token 70", "novel, window 2, token 71", "novel, token 72"):
        assert place in text


@pytest.mark.parametrize("case", CASES)
def test_a_page_is_well_formed_whatever_the_results_hold(case: str):
    page = checked(html(extreme(case)))
    assert ("≥" in page.text) == (case == "a lower bound")
    if case == "infinite":
        assert "∞" in page.text


def test_what_a_file_lacks_is_told():
    data = results(3, passages=0)
    del data["files"][1]["histogram"]
    data["files"][0]["tensors"] = tensors(0.01, 3)
    for file in data["files"]:
        del file["flips"]
    del data["files"][2]["same_top"]
    page = checked(html(data))
    assert "are left of it. Not in the results: Q6_K." in page.text
    assert "largest errors. Not in the results: Q6_K, Q5_K_M." in page.text
    assert "Not in the results: flips." in page.text
    assert "–" in page.text


def test_one_legend_stands_before_all_that_it_explains():
    text = html(extreme("tensors"))
    assert text.count('class="key"') == 1
    assert text.index('class="key"') < min(text.index(name) for name in ('id="texts"', 'id="tensors"', "<details"))
    assert text.count("<svg") == 5


@pytest.mark.parametrize("count", [1, 12])
def test_pages_of_one_and_of_many_files(count: int):
    page = checked(html(results(count, passages=2)))
    assert page.tags.count("svg") == 5
    assert page.tags.count("details") == count


def test_figures_and_passages_are_in_the_page():
    data = results(2)
    page = checked(html(data))
    for said in ("0.000400 ± 0.000010", "143 MB", "8.50", "99.50 %", "0.00720", "16.42 ± 0.31"):
        assert said in page.text
    for token in ("\\x1b", "\\u202e", "<b>"):
        assert token in page.text
    assert page.tags.count("mark") == 2 * 20
    assert "".join(PASSAGE[:15]) in page.text


def test_the_same_results_give_the_same_bytes():
    assert html(results(3, passages=1)) == html(results(3, passages=1))


LACKING = {
    "files": ({"base": "b"}, "has no list files"),
    "any file": ({"base": "b", "files": []}, "has no files"),
    "the base": ({"files": [{"path": "a", "perplexity": 1, "kl_divergence": {"mean": 0}}]}, "has no text base"),
    "a path": ({"base": "b", "files": [{"perplexity": 1, "kl_divergence": {"mean": 0}}]}, r"\[0\] has no text file"),
    "a mean": ({"base": "b", "files": [{"path": "a", "perplexity": 1}]}, r"\[0\] has no number kl_divergence.mean"),
    "a perplexity": ({"base": "b", "files": [{"path": "a", "kl_divergence": {"mean": 0}}]}, "has no number perplexity"),
    "an object": ({"base": "b", "files": [3]}, r"files\[0\] is int, not an object"),
    "text": ({"base": 3, "files": []}, "has no files"),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_is_lacking_is_named(what: str, tmp_path: Path):
    data, said = LACKING[what]
    with pytest.raises(FileError, match=said) as caught:
        write_html(data, tmp_path / "r.html", source="r.json")
    assert "r.json" in str(caught.value)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        {"histogram": {"edges": 3}},
        {"texts": []},
        {"worst": {}},
        {"worst": [{"passage": [1]}]},
        {"chunks": "x"},
        {"tensors": {"a": 1}},
        {"type": 7},
    ],
)
def test_parts_of_another_kind_are_refused(wrong: dict[str, Any]):
    data = results(1, passages=1)
    data["files"][0] |= wrong
    with pytest.raises(FileError):
        html(data)


def test_the_command_writes_a_page_and_prints_tables(tmp_path: Path):
    source, target = tmp_path / "r.json", tmp_path / "r.html"
    source.write_text(json.dumps(results(2, passages=1)))
    done = typed("report", source, "--html", target)
    assert (done.returncode, done.stdout) == (0, "")
    checked(target.read_text("utf-8"))
    again = typed("report", source, "--html", target)
    assert again.returncode == 1
    assert "already exists" in again.stderr
    assert typed("report", source, "--html", target, "--overwrite", "--markdown").stdout.startswith("| file |")
    assert "Q8_0.gguf" in typed("report", source).stdout


def test_a_report_without_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GgufToolsError, match="needs matplotlib") as caught:
        write_html(results(1), tmp_path / "r.html")
    assert "gguftools[report]" in str(caught.value.hint)


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, f"needs a browser: none of {', '.join(BROWSERS)} is installed"
    return found


FRAMES = """<!DOCTYPE html><title>-</title><body><script>
const wide = [];
let left = 3;
for (const width of [400, 800, 1280]) {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px";
  frame.onload = () => {
    const page = frame.contentDocument;
    const scroll = page.querySelector(".scroll");
    scroll.style.maxHeight = "90px";
    scroll.scrollTo(90, 130);
    const offset = (selector, side) =>
      Math.abs(scroll.querySelector(selector).getBoundingClientRect()[side] - scroll.getBoundingClientRect()[side]);
    const stuck = offset("thead th:nth-child(2)", "top") + offset("thead th", "left") + offset("tbody th", "left") < 5;
    const marks = [...page.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height < 100);
    wide.push(`${width}:${page.documentElement.scrollWidth}:${marks.length}:${stuck}`);
    if (!--left) document.title = wide.sort().join(" ");
  };
  frame.srcdoc = PAGE;
  document.body.append(frame);
}
</script>"""


def opened(browser: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A page opened; a wrong end may be the machine's, so it is told."""
    done = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            f"--user-data-dir={folder / 'profile'}",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


@pytest.mark.browser
def test_a_browser_shows_the_page_at_any_width(browser: str, tmp_path: Path):
    """Nothing is wider than the window, no image without height; a table's head and first column stay in sight."""
    text = html(extreme("tensors"))
    script = json.dumps(text).replace("</", "<\\/")
    (tmp_path / "frames.html").write_text(FRAMES.replace("PAGE", script), "utf-8")
    dumped = opened(browser, tmp_path, "--dump-dom", f"file://{tmp_path / 'frames.html'}").stdout
    title = re.search(r"<title>(.*?)</title>", dumped)
    assert title is not None
    found = dict(each.split(":", 1) for each in title[1].split())
    assert found == {"400": "400:0:true", "800": "800:0:true", "1280": "1280:0:true"}


@pytest.mark.browser
def test_a_browser_draws_the_page(browser: str, tmp_path: Path):
    """An image of it has more than a few colours."""
    from matplotlib.image import imread

    write_html(results(2, passages=2), tmp_path / "r.html")
    image = tmp_path / "r.png"
    opened(browser, tmp_path, "--window-size=1280,1600", f"--screenshot={image}", f"file://{tmp_path / 'r.html'}")
    pixels = imread(image)
    assert pixels.shape[:2] == (1600, 1280)
    assert len({tuple(pixel) for pixel in pixels[::8, ::8, :3].reshape(-1, 3).round(2).tolist()}) > 50


def test_divergence_writes_its_report(tmp_path: Path):
    model, target = tmp_path / "m.gguf", tmp_path / "r.html"
    assert typed("convert", EXAMPLE, "-o", model).returncode == 0
    (tmp_path / "t").write_text("It was the custom of Captain Wentworth to walk before breakfast. " * 12)
    words = ("divergence", model, model, "-f", tmp_path / "t", "--ctx", 32, "--chunks", 2, "--html", target)
    done = typed(*words, "--markdown")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| file |")
    checked(target.read_text("utf-8"))
    assert "already exists" in typed(*words).stderr
    alone = typed("divergence", model, "--html", tmp_path / "x.html", "-f", tmp_path / "t")
    assert alone.returncode == 2
    assert "needs files" in alone.stderr
