"""The names recorded from the gguf package."""

from __future__ import annotations

import sys

import pytest

from archs.gguf_names import table, tensor_names
from tests.verify.gguf_names import recorded


def test_names_are_those_of_the_installed_gguf() -> None:
    installed, ours = recorded(), table()
    if installed["gguf"] != ours["gguf"]:
        news = ", ".join(sorted({*installed["tensors"]} ^ {*ours["tensors"]})) or "none"
        pytest.skip(
            f"the table is of gguf {ours['gguf']}, installed is {installed['gguf']}; "
            f"architectures of one alone: {news}; `make model-types` records it again"
        )
    assert installed == ours


def test_names_do_not_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert {"token_embd", "blk.{i}.attn_q"} <= tensor_names("llama")
    assert tensor_names("no-such") == set()
