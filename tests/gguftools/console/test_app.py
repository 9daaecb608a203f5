"""What all commands have in common."""

from __future__ import annotations

import shlex

import pytest
import typer.main

from gguftools.__main__ import build_app

GROUP = typer.main.get_command(build_app())
COMMANDS = GROUP.commands  # type: ignore[attr-defined]


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
