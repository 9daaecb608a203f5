"""U7: quantized files are llama.cpp's byte for byte, the order of keys included; every page is linked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import gguftools

from ..conftest import ROOT
from .tool import EXAMPLE


@pytest.mark.parametrize(
    ("recipe", "digest"),  # sha256 of what llama-quantize (build 11434) makes of the example in F16
    [
        ("Q8_0", "abde005d3e501cc7ad06b10f7a4158ad7d2a7eb704ae5fac8b79a78f4cc4ac67"),
        ("Q4_K_M", "c8e80eb3ffc64977cd6a48109caba4a97797252f287fcc99a11c44c89b2324c9"),
    ],
)
def test_whole_files_are_the_same(recipe: str, digest: str, tmp_path: Path) -> None:
    gguftools.convert(EXAMPLE, tmp_path / "model.gguf", "F16")
    gguftools.quantize(tmp_path / "model.gguf", recipe, tmp_path / "out.gguf")
    assert hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest() == digest


def test_every_page_is_in_the_navigation_that_the_readme_links() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()
    listed = (ROOT / "mkdocs.yml").read_text().split()
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in listed] == []


def test_the_docs_say_how_near_rounded_activations_come() -> None:
    text = (ROOT / "docs" / "perplexity.md").read_text()
    assert "within 0.03 %" in text[text.index("--round-activations") :]
