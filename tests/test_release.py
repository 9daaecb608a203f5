"""Compare the places that name the version and the date of the newest release."""

from __future__ import annotations

import re

import yaml

import gguftools

from .conftest import ROOT


def test_all_places_name_the_same_release() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    headings = re.findall(r"^## (\S+)(?: \((.+)\))?$", changelog, re.MULTILINE)
    assert project is not None
    assert citation["version"] == project[1] == gguftools.__version__
    assert headings[0] == ("Unreleased", "")
    assert headings[1] == (citation["version"], citation["date-released"].isoformat())
