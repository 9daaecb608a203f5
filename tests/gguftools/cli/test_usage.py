"""The tables of what other programs call things, against the commands that there are."""

from __future__ import annotations

import pytest

from gguftools.cli.elsewhere import FIRST, LAST, OTHERWISE, PROGRAMS, RENAMED
from gguftools.cli.usage import ALIASES, USAGE_ERROR, gathered, mistaken, options_of

from ..command_line import program

COMMANDS = program().commands
ALL_OPTIONS = set().union(*(options_of(command) for command in COMMANDS.values()))


def test_every_program_is_a_command_here():
    assert set(PROGRAMS.values()) <= set(COMMANDS)
    assert not set(PROGRAMS) & set(COMMANDS)


@pytest.mark.parametrize("table", [RENAMED, OTHERWISE, ALIASES], ids=["renamed", "otherwise", "aliases"])
def test_what_is_named_elsewhere_is_no_option_of_the_command(table):
    for name, flags in table.items():
        assert name == "" or name in COMMANDS
        assert not name or not set(flags) & options_of(COMMANDS[name])


def test_every_option_that_is_meant_exists():
    for table in (RENAMED, ALIASES):
        for name, flags in table.items():
            options = {*options_of(COMMANDS[name]), "--help"} if name else {*ALL_OPTIONS, "--help"}
            meant = {word for text in flags.values() if text not in (FIRST, LAST) for word in text.split()}
            assert {word for word in meant if word.startswith("--")} <= options


@pytest.mark.parametrize(
    ("command", "old", "new"), [(command, old, new) for command, flags in ALIASES.items() for old, new in flags.items()]
)
def test_an_old_spelling_means_the_new_one(command, old, new):
    group = program()
    _, _, words = group.resolve_command(None, [command, "file", old, f"{old}=1", "x"])  # type: ignore[attr-defined]
    assert words == ["file", new, f"{new}=1", "x"]


def test_recipes_in_order_are_no_mistake():
    assert mistaken(COMMANDS["quantize"], ["in.gguf", "Q4_K_M", "Q8_0"]) is None
    assert mistaken(COMMANDS["quantize"], ["in.gguf", "15"]) is None  # a recipe's number


@pytest.mark.parametrize(
    ("call", "twice"),
    [
        ("quantize m Q8_0 -j 1 --threads 2", "--threads"),
        ("quantize m Q8_0 -j1 -j2", "--threads"),
        ("convert m --outtype f16 --outtype=q8_0", "--outtype"),
        ("quantize m --statistics --no-statistics", "--statistics"),
        ("quantize m Q8_0 --json --json -qv", None),
        ("show m --key a --key a", None),
        ("set-metadata m --remove --remove --type a=b", None),
        ("show -- --tensors --tensors", None),
        ("split m --max-size 2M --split-max-size 3M", "--split-max-size"),
    ],
)
def test_an_option_of_one_value_is_given_once(call, twice):
    group = program()
    if twice is None:
        group.resolve_command(None, call.split())  # type: ignore[attr-defined]
        return
    with pytest.raises(USAGE_ERROR, match=f"{twice} is given twice"):
        group.resolve_command(None, call.split())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("t --from d a b -o x", ["t", "--from", "d\0a\0b", "-o", "x"]),
        ("t --from=d a --from e c", ["t", "--from", "d\0a", "--from", "e\0c"]),
        ("--from d a", ["--from", "d\0a"]),
        ("t --from", ["t", "--from"]),
        ("t --from -o x y", ["t", "--from", "-o", "x", "y"]),
    ],
)
def test_words_behind_an_option_that_takes_several(words, made):
    assert gathered("graft", words.split()) == made
    assert gathered("split", words.split()) == words.split()
