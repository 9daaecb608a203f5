"""Turn wrong calls into one line and a hint."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from .calls import GATHERED, parse_call
from .corrections import completed, correct, read_call
from .elsewhere import NOT_HERE, PROGRAMS
from .options import MODEL_SPELLINGS

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's, or that of the click in newer versions of typer
# Older spellings, which are accepted but not shown.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "audit": {"--tensors": "--tensor-values"},
    "convert": {"--check": "--check-logits", "--recipe": "--outtype"},
    "diff": {"--all": "--all-tensors"},
    "export": {"--max-shard-size": "--split-max-size"},
    "gpu-split": {"--least": "--min-neurons"},
    "imatrix-info": {"--least-rows": "--min-rows"},
    "split": {"--max-size": "--split-max-size", "--max-tensors": "--split-max-tensors"},
}
# Options whose values are all words up to the next option, joined by GATHERED.
SEVERAL_WORDS: Mapping[str, tuple[str, ...]] = {"graft": ("--from",)}
OPTIONS_OF: Mapping[str, Mapping[str, str]] = {"imatrix-info": {"output": "--merge"}}  # the same, of some commands
A_NUMBER = "X"  # value name of a real number in help


def gathered(command: str, words: Sequence[str]) -> list[str]:
    """Return the words of a call, with the values of an option that takes several joined into one."""
    joined: list[str] = []
    begins: int | None = None
    for word in words:
        name, sign, value = word.partition("=")
        if word.startswith("-") and word != "-":
            begins = len(joined) + 1 if name in SEVERAL_WORDS.get(command, ()) else None
            joined += [name, value] if begins is not None and sign else [word]
        elif begins is not None and len(joined) > begins:
            joined[begins] += GATHERED + word
        else:
            joined.append(word)
    return joined


def with_model_as_argument(command: Any, words: Sequence[str], is_incomplete: bool = False) -> list[str]:
    """Return the words of a call with the value of -m or --model as the command's first argument.

    is_incomplete: the call is still being typed. Raises a usage error where -m has no value, or one too many.
    """
    argument = getattr(command, "model_argument", None)
    if argument is None or not any(word.startswith(MODEL_SPELLINGS) for word in words):
        return list(words)
    name = str(command.name)
    known = read_call(command, words, (), ALIASES.get(name, {}), SEVERAL_WORDS.get(name, ()))[1]
    call = parse_call(name, words, {**known.own, **dict.fromkeys(MODEL_SPELLINGS, 1)})
    front, rest = list[str](), list[str]()
    for part in call.parts:
        if part.option not in MODEL_SPELLINGS:
            rest += part.words
        elif not part.value:
            if not is_incomplete:
                raise USAGE_ERROR(f"{part.option} is given without a value")
        elif front and not is_incomplete:
            raise USAGE_ERROR(f"{part.option} is given twice; it takes one value")
        elif argument.nargs == -1:
            rest.append(part.value)
        else:
            front.append(part.value)
    return front + rest


def given_twice(command: Any, words: Sequence[str], ctx: Any) -> str | None:
    """Return an option that takes one value and is given two."""
    try:
        _, _, given = command.make_parser(typer.Context(command, parent=ctx)).parse_args(list(words))
    except USAGE_ERROR:
        return None  # reported later
    for option in {each for each in given if given.count(each) > 1}:
        opposite = option.is_flag and {*option.opts, *option.secondary_opts}.intersection(words) > {*option.opts}
        if option.param_type_name == "option" and not option.multiple and (not option.is_flag or opposite):
            return str(option.opts[0])
    return None


def explain(error: Any, words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with a call in one line, and what to type instead."""
    name = next((word for word in words if word in commands), "")
    if not name or (error.ctx is not None and error.ctx.parent is None):
        return _wrong_command(error, words, commands)
    typed = list(words[words.index(name) + 1 :])
    message = error.format_message().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        flag = next((word.partition("=")[0] for word in typed if word.startswith(option)), option)
        return f"{name} has no option {flag}", _instead(name, flag, commands)
    hint = f"`gguftools {name} --help` lists its arguments and options"
    parameter = getattr(error, "param", None)
    if parameter is not None and re.search(r"Input should be|is not (?:a valid|in the range)", message):
        return f"{name}: {_wrong_value(parameter, typed, commands[name])}", hint
    return f"{name}: {message[:1].lower()}{message[1:]}", hint


def _wrong_value(parameter: Any, typed: Sequence[str], command: Any) -> str:
    """Describe a wrong number in our own words; typer's come from a library that it calls."""
    call, _ = read_call(command, typed, (), {}, ())
    value = call.value_of((*parameter.opts, *parameter.secondary_opts))
    of_type = getattr(parameter, "type", None)  # other versions of typer have the bounds there
    low, high = (getattr(parameter, end, getattr(of_type, end, None)) for end in ("min", "max"))
    wanted = "a number" if parameter.metavar == A_NUMBER else "a whole number"
    bounds = " and ".join(f"at {word} {end}" for word, end in (("least", low), ("most", high)) if end is not None)
    actual = f"{parameter.opts[0]} is {value!r}" if value is not None else f"{parameter.opts[0]} has another type"
    return f"{actual}; {wanted}{f' of {bounds}' if bounds else ''} was expected"


def mistaken(command: Any, words: Sequence[str], before: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return what is wrong with the words of a call before they are parsed, and what to type instead; None if nothing.

    before: the words before the command.
    """
    name = str(command.name)
    call, known = read_call(command, words, before, ALIASES.get(name, {}), SEVERAL_WORDS.get(name, ()))
    return correct(call, known)


def completed_hint(hint: str, command: Any, words: Sequence[str], before: Sequence[str]) -> str:
    """Return the hint of an error; calls of the same command that it shows keep the options that were typed."""
    name = str(command.name)
    call, _ = read_call(command, words, before, ALIASES.get(name, {}), SEVERAL_WORDS.get(name, ()))
    return completed(hint, call)


def _wrong_command(error: Any, words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, str]:
    message = error.format_message().rstrip(".")
    from quants.spelling import did_you_mean  # here and below, because the package takes long to import

    match = re.match(r"No such command '(.*?)'", message)
    if not match:
        return message[:1].lower() + message[1:], _option_before_command(words, commands)
    name = match[1].replace("_", "-")
    known = PROGRAMS.get(name.removesuffix(".exe").removesuffix(".py"))
    if known == "split" and "--merge" in words:
        known = "merge"
    problem = f"there is no command {match[1]!r}"
    if name in commands or known:
        place = words.index(match[1])
        line = _corrected(commands[known or name], words[place + 1 :], words[:place])
        return problem, f"use `gguftools {known or name}`: {line}"
    if name in NOT_HERE:
        return problem, "gguftools has no server; `gguftools --help` lists the commands"
    return problem, did_you_mean(name, commands) or "`gguftools --help` lists the commands"


def _option_before_command(words: Sequence[str], commands: Mapping[str, Any]) -> str:
    """Return the correction for an option before the command."""
    name = next((word for word in words if word in commands), "")
    if not name:
        return "options go after the command; `gguftools --help` lists the commands"
    place = words.index(name)
    return f"options go after the command: {_corrected(commands[name], [*words[place + 1 :], *words[:place]], ())}"


def _corrected(command: Any, words: Sequence[str], before: Sequence[str]) -> str:
    """Return the corrected call for another name of a command, with its other mistakes corrected."""
    if wrong := mistaken(command, words, before):
        return wrong[1]
    return f"type `{shlex.join(['gguftools', *before, str(command.name), *words])}`"


def options_of(command: Any) -> set[str]:
    """Return every spelling of a command's options."""
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}


def _instead(name: str, flag: str, commands: Mapping[str, Any]) -> str:
    """Return a hint for an option that neither the command nor another program has."""
    from quants.spelling import did_you_mean

    own = options_of(commands[name])
    others = [other for other, command in commands.items() if flag in options_of(command)]
    if others and flag.startswith("--"):
        return f"it is an option of {' and '.join(others[:3])}"
    known = sorted(each for each in own if each.startswith("--"))
    return did_you_mean(flag, known) or f"`gguftools {name} --help` lists its options"
