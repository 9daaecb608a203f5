"""What all commands have in common."""

from __future__ import annotations

import logging
import shlex
from typing import Any

import pytest
import typer

from gguftools.cli import commands, terminal
from gguftools.cli.app import PACKAGES
from gguftools.cli.help import GROUPS, OPTIONS, sections
from gguftools.cli.options import COMMON, HIDDEN_SPELLINGS

from ...conftest import DATA
from ..command_line import program, typed

GOLDEN = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
GROUP = program()
COMMANDS = GROUP.commands  # type: ignore[attr-defined]


def test_a_command_leaves_no_settings_to_the_next() -> None:
    """Those of one call in this process: how much it prints, in which words, and what the packages log."""
    loggers = [logging.getLogger(name) for name in PACKAGES]

    def settings() -> list[Any]:
        levels = [(each.level, list(each.handlers)) for each in loggers]
        return [terminal.quiet, terminal.verbose, terminal.debug, terminal.worded, levels]

    before = settings()
    assert typed("-q", "show", GOLDEN, "--verbose").returncode == 0
    assert settings() == before
    assert typed("--debug", "show", "--all").returncode != 0
    assert settings() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_calls_that_are_understood(name: str):
    for example in COMMANDS[name].epilog.splitlines():
        program, called, *words = shlex.split(example)
        assert (program, called) == ("gguftools", name)
        assert len(example) <= 78
        context = COMMANDS[name].make_context(name, words)  # raises for what is no option, and what is missing
        assert context.params


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options(name: str):
    flags = {flag for each in COMMANDS[name].params for flag in each.opts}
    assert {"--quiet", "-q", "--verbose", "-v", "--debug"} <= flags


@pytest.mark.parametrize("name", COMMANDS)
def test_values_have_a_word(name: str):
    for each in COMMANDS[name].params:
        if each.param_type_name == "option" and not each.is_flag:
            assert each.metavar
            assert each.metavar.isupper()


def test_help_lists_the_commands_in_groups():
    context = GROUP.make_context("gguftools", ["show", "x"])
    listed = dict(sections(GROUP, context))
    assert [title for title in listed if title in GROUPS] == list(GROUPS)
    assert {name for title in GROUPS for name, _ in listed[title]} == set(COMMANDS)
    for title in GROUPS:
        for name, purpose in listed[title]:
            assert purpose[0].isupper()
            assert purpose.endswith(".")
            assert len(purpose) <= 62, f"{name}: more than a line of a terminal"


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_panels(name: str):
    """At most ten or so come first, and no panel names an option that there is not."""
    command, module = COMMANDS[name], commands.load(name)[name]
    context = typer.Context(command)
    shown = dict(sections(command, context))
    assert list(shown)[-1] == COMMON
    panels = getattr(module, "PANELS", {})
    parameters = {each.name: each for each in command.params}
    named = [each for names in panels.values() for each in names]
    assert len(named) == len(set(named))
    assert set(named) <= set(parameters)
    for title, names in panels.items():
        assert {parameters[each].rich_help_panel for each in names} == {title}
    if name != "generate":
        assert len(shown.get(OPTIONS, ())) <= 15


def test_hidden_spellings_are_not_shown():
    text = "\n".join(
        name
        for _, entries in sections(COMMANDS["quantize"], typer.Context(COMMANDS["quantize"]))
        for name, _ in entries
    )
    assert "-t, --threads N" in text
    assert not any(f"{each}," in text for each in HIDDEN_SPELLINGS)
