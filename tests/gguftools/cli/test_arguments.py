"""What texts of arguments mean, and which mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguftools.cli.arguments import parse_donor, parse_layers, parse_merge, parse_rule, parse_size, read_rules
from quants.errors import FileError, GgufToolsError, OptionError


def test_sizes() -> None:
    given = ("5", "500M", "2G", "1k", "3 GB")
    assert [parse_size(text) for text in given] == [5, 5 * 10**8, 2 * 10**9, 1000, 3 * 10**9]
    for wrong in ("", "M", "0", "-1G", "1.5G", "2X"):
        with pytest.raises(OptionError):
            parse_size(wrong)


def test_rules_from_a_file(tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("# attention\nattn_q=q4_k\n\n  ffn_(up|gate)=F16  \nblk\\.(?=0)=Q8_0\n")
    assert read_rules(rules) == (("attn_q", "Q4_K"), ("ffn_(up|gate)", "F16"), ("blk\\.(?=0)", "Q8_0"))
    for wrong in ("attn_q", "=Q8_0", "attn_q="):
        with pytest.raises(OptionError):
            parse_rule(wrong)
    with pytest.raises(FileError):
        read_rules(tmp_path / "none.txt")


def test_scales_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "r=8").mkdir()
    assert parse_merge("some/adapter") == (Path("some/adapter"), 1.0)
    assert parse_merge("some/adapter=-0.5") == (Path("some/adapter"), -0.5)
    assert parse_merge(str(tmp_path / "r=8")) == (tmp_path / "r=8", 1.0)
    assert parse_merge(f"{tmp_path / 'r=8'}=2") == (tmp_path / "r=8", 2.0)
    with pytest.raises(GgufToolsError, match="'much'"):
        parse_merge("adapter=much")


def test_layers() -> None:
    assert parse_layers("3") == (3,)
    assert parse_layers("3, 5-7,6") == (3, 5, 6, 7)
    for wrong in ("", "x", "-1", "3-", "7-5", "1,,2", "1.5", "9999999"):
        with pytest.raises(OptionError, match="is not a list of layers"):
            parse_layers(wrong)


def test_donors() -> None:
    assert parse_donor("d.gguf\0mtp\0key:rope") == (Path("d.gguf"), ("mtp", "key:rope"))
    for wrong in ("", "d.gguf", "\0mtp"):
        with pytest.raises(OptionError, match="names nothing to take"):
            parse_donor(wrong)
