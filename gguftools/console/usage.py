"""Wrong calls end with one line and a hint, which knows what llama.cpp's programs and scripts call the same thing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from .help import OwnHelp

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's, or that of the click within newer typers
FIRST, LAST = "an argument in front", "an argument at the end"  # instead of an option's value
DROPPED, DROPPED_WITH_VALUE = "", "and its value"

# What other programs' users type -> the same thing here. Where a command has the option itself, that is meant.
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "": {
        "--max-size": "--split-max-size", "--max-tensors": "--split-max-tensors", "--shard-size": "--split-max-size",
        "--max-shard-size": "--split-max-size",
        "-m": FIRST, "--model": FIRST, "--model-path": FIRST, "--in": FIRST, "--input": FIRST, "-i": FIRST,
        "-t": "--threads", "--n-threads": "--threads", "--nthreads": "--threads", "--nthread": "--threads",
        "--jobs": "--threads", "-tb": DROPPED_WITH_VALUE, "--threads-batch": DROPPED_WITH_VALUE,
        "--outfile": "--output", "--output-file": "--output", "--out": "--output", "--out-file": "--output",
        "--output-dir": "--output", "--outdir": "--output", "--force": "--overwrite", "-y": "--overwrite",
        "--ctx-size": "--ctx", "--n-ctx": "--ctx", "--context-size": "--ctx", "--text": "--file",
        "--text-file": "--file", "--ppl-stride": "--stride", "--n-chunks": "--chunks",
        "-ngl": DROPPED_WITH_VALUE, "--gpu-layers": DROPPED_WITH_VALUE, "--n-gpu-layers": DROPPED_WITH_VALUE,
        "-ts": DROPPED_WITH_VALUE, "-mg": DROPPED_WITH_VALUE, "-sm": DROPPED_WITH_VALUE, "-dev": DROPPED_WITH_VALUE,
        "-b": DROPPED_WITH_VALUE, "--batch-size": DROPPED_WITH_VALUE, "-ub": DROPPED_WITH_VALUE,
        "--ubatch-size": DROPPED_WITH_VALUE, "-s": DROPPED_WITH_VALUE, "--seed": DROPPED_WITH_VALUE,
        "-np": DROPPED_WITH_VALUE, "-ctk": DROPPED_WITH_VALUE, "-ctv": DROPPED_WITH_VALUE,
        "--flash-attn": DROPPED_WITH_VALUE, "--no-mmap": DROPPED, "--mlock": DROPPED, "--verbose-prompt": DROPPED,
        "--use-temp-file": DROPPED, "--no-lazy": DROPPED, "--perplexity": DROPPED, "--no-warmup": DROPPED,
        "--no-layer": "--no-tensors",
    },
    "quantize": {
        "--outtype": LAST, "--type": LAST, "--ftype": LAST, "--qtype": LAST, "--recipe": LAST, "--quant": LAST,
        "--imatrix-file": "--imatrix", "--prune": "--prune-layers", "--tensor-types": "--tensor-type",
    },
    "convert": {"--remote": DROPPED, "--type": "--outtype", "--ftype": "--outtype", "--pre-tokenizer": "--pre"},
    "imatrix": {"--no-ppl": DROPPED, "--output-frequency": DROPPED_WITH_VALUE, "--ofreq": DROPPED_WITH_VALUE,
                "--output-format": DROPPED_WITH_VALUE},
    "split": {"--split": DROPPED},
    "merge": {"--merge": DROPPED},
    "hash": {"-c": "--check", "--manifest": "--check"},
    "set-metadata": {"--remove-metadata": "--remove", "--delete": "--remove"},
}  # fmt: skip
# What is had otherwise than by an option.
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "convert": {
        "--vocab-only": "a file of the vocabulary alone is not made",
        "--mmproj": "towers for pictures and sounds are not converted, only text models",
        "--mistral-format": "Mistral's own layout is not read: fetch the Hugging Face version",
        "--bigendian": "convert, then `gguftools convert-endian FILE big`",
        "--model-name": "convert, then `gguftools set-metadata FILE general.name=NAME`",
        "--metadata": "convert, then `gguftools set-metadata FILE --from-json METADATA.json`",
        "--split-max-size": "convert, then `gguftools split FILE --split-max-size SIZE`",
        "--split-max-tensors": "convert, then `gguftools split FILE --split-max-tensors N`",
        "--print-supported-models": "`gguftools architectures` lists them",
        "--base": "an adapter is written by `gguftools convert BASE-FOLDER --lora ADAPTER-FOLDER`",
        "--dry-run": "`gguftools quantize FOLDER RECIPE --dry-run` says what would be written",
    },
    "imatrix": {
        "--in-file": "matrices are put together by `gguftools imatrix-info A B --merge OUTPUT`",
        "--show-statistics": "`gguftools imatrix-info MATRIX` shows them",
    },
    "perplexity": {
        "--hellaswag": "only perplexity is measured", "--winogrande": "only perplexity is measured",
        "--multiple-choice": "only perplexity is measured", "--kl-divergence": "only perplexity is measured",
        "--kl-divergence-base": "only perplexity is measured", "--save-all-logits": "logits are not kept",
    },
    "set-metadata": {
        "--general-name": "KEY=VALUE sets any key: general.name=NAME",
        "--general-description": "KEY=VALUE sets any key: general.description=TEXT",
        "--pre-tokenizer": "KEY=VALUE sets any key: tokenizer.ggml.pre=NAME",
        "--special-token-by-id": "--special-token ROLE=ID does it: a number is an id",
        "--chat-template-file": "--chat-template @FILE takes the template's text",
        "--chat-template-config": "--chat-template @FILE takes the template's text",
    },
    "show": {
        "--json-array": "--json prints arrays, those of many items cut; --key KEY prints a whole one",
        "--no-tensors": "--key KEY, which may be repeated, prints single values",
    },
}  # fmt: skip
PROGRAMS: Mapping[str, str] = {
    "llama-quantize": "quantize", "llama-perplexity": "perplexity", "llama-imatrix": "imatrix",
    "llama-gguf-hash": "hash", "gguf-hash": "hash", "gguf-dump": "show", "gguf-dump.py": "show", "dump": "show",
    "info": "show", "inspect": "show", "cat": "show", "ls": "show", "gguf-set-metadata": "set-metadata",
    "gguf-set-metadata.py": "set-metadata", "set": "set-metadata", "edit": "set-metadata",
    "gguf-new-metadata": "set-metadata", "gguf-new-metadata.py": "set-metadata",
    "gguf-convert-endian": "convert-endian", "gguf-convert-endian.py": "convert-endian",
    "convert-hf-to-gguf": "convert", "convert-hf-to-gguf.py": "convert", "convert-lora-to-gguf": "convert",
    "convert-lora-to-gguf.py": "convert", "llama-export-lora": "convert", "export-lora": "convert",
    "compare": "diff", "check": "validate", "verify": "validate", "ppl": "perplexity", "checksum": "hash",
    "models": "architectures", "types": "formats", "llama-gguf-split": "split", "gguf-split": "split",
}  # fmt: skip
# Spellings that are accepted without being shown.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "audit": {"--tensors": "--tensor-values"},
    "convert": {"--check": "--check-logits"},
    "diff": {"--all": "--all-tensors"},
    "export": {"--max-shard-size": "--split-max-size"},
    "split": {"--max-size": "--split-max-size", "--max-tensors": "--split-max-tensors"},
}
NOT_HERE = ("llama-cli", "llama-server", "llama-run", "run", "chat", "serve", "generate", "download", "upload")


class Commands(OwnHelp, TyperGroup):
    """The commands; whoever calls one wrongly is told in one line what to type."""

    words: Sequence[str] = ()

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:
        """Parse what is common to all commands."""
        self.words = list(args)
        with self._explained():
            return super().make_context(info_name, args, *rest, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with self._explained():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name, and its words without old spellings."""
        name, command, rest = super().resolve_command(ctx, args)
        for before, word in zip(("", *rest), rest, strict=False):
            if not word or (word.startswith("--") and word.endswith("=")):
                raise USAGE_ERROR(f"{word or before or 'an argument'} is given without a value")
        current = [_current(word, ALIASES.get(str(name), {})) for word in rest]
        if twice := _given_twice(command, current):
            raise USAGE_ERROR(f"{twice} is given twice; it takes one value")
        return name, command, current

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            from .ui import usage

            usage(*explain(error, self.words, self.commands))


def _given_twice(command: Any, words: Sequence[str]) -> str | None:
    """An option that has one value and is given a second one."""
    options = {spelled: each for each in command.params for spelled in (*each.opts, *each.secondary_opts)}
    seen: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        found = word.partition("=")[0]
        found = found if found in options or word.startswith("--") else word[:2]
        option = options.get(found) if found.startswith("-") else None
        if option is None:
            continue
        if option.name in seen and not option.multiple and (not option.is_flag or seen[option.name] != found):
            return str(option.opts[0])
        seen[option.name] = found
        if not option.is_flag and word == found:
            next(rest, None)  # its value
    return None


def _current(word: str, aliases: Mapping[str, str]) -> str:
    flag, sign, value = word.partition("=")
    return aliases.get(flag, flag) + sign + value


def explain(error: Any, words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong with a call in one line, and what to type instead."""
    option, name = getattr(error, "option_name", None), next((word for word in words if word in commands), "")
    if not name or (error.ctx is not None and error.ctx.parent is None):
        return _wrong_command(error, words, commands)
    typed = list(words[words.index(name) + 1 :])
    message = error.format_message().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        flag = next((word.partition("=")[0] for word in typed if word.startswith(str(option))), str(option))
        return f"{name} has no option {flag}", _instead(name, flag, typed, commands)
    extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message)
    if extra:
        option = next((each for each in ("--file", "--output") if each in options_of(commands[name])), None)
        hint = f"is {option} {extra[1]} meant?" if option else f"`gguftools {name} --help` says what it takes"
        return f"{name} takes no further argument {extra[1]}", hint
    return f"{name}: {message[:1].lower()}{message[1:]}", f"`gguftools {name} --help` says what it takes"


def _wrong_command(error: Any, words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, str]:
    message = error.format_message().rstrip(".")
    from quants.spelling import did_you_mean  # here and below, because the package takes long to import

    found = re.match(r"No such command '(.*?)'", message)
    if not found:
        return message[:1].lower() + message[1:], "options go behind the command; `gguftools --help` lists the commands"
    name = found[1].replace("_", "-")
    known = PROGRAMS.get(name.removesuffix(".exe"))
    if known == "split" and "--merge" in words:
        known = "merge"
    if name in commands or known:
        return f"there is no command {found[1]!r}", f"here that is `gguftools {known or name}`"
    if name in NOT_HERE:
        return f"there is no command {found[1]!r}", "models are converted, quantized, edited and measured here, not run"
    return f"there is no command {found[1]!r}", did_you_mean(name, commands) or "`gguftools --help` lists the commands"


def options_of(command: Any) -> set[str]:
    """Every spelling of a command's options."""
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}


def _instead(name: str, flag: str, typed: Sequence[str], commands: Mapping[str, Any]) -> str:
    """What to type where a command does not have an option."""
    from quants.spelling import did_you_mean

    own = options_of(commands[name])
    if text := OTHERWISE.get(name, {}).get(flag):
        return text
    if _meant(name, _spelling(name, flag, own), own) is not None:
        return f"type `gguftools {name} {shlex.join(_translated(name, typed, own))}`"
    others = [other for other, command in commands.items() if flag in options_of(command)]
    if others and flag.startswith("--"):
        return f"{' and '.join(others[:3])} {'have' if others[1:] else 'has'} such an option"
    known = sorted(each for each in own if each.startswith("--"))
    return did_you_mean(flag, known) or f"`gguftools {name} --help` lists its options"


def _meant(name: str, flag: str, own: set[str]) -> str | None:
    """The same thing here; None for what is unknown, or has no place in this command."""
    found = ELSEWHERE.get(name, {}).get(flag, ELSEWHERE[""].get(flag))
    return found if found is None or not found.startswith("--") or found in own else None


def _spelling(name: str, word: str, own: set[str]) -> str:
    """The flag of a word, whose value may follow at once, as in -t8."""
    flag = word.partition("=")[0]
    short = flag[:2]
    glued = flag[:1] == "-" and flag[1:2] != "-" and flag[2:].isdecimal() and _meant(name, short, own) is not None
    return short if glued else flag


def _translated(name: str, typed: Sequence[str], own: set[str]) -> list[str]:
    """The words as they should be: options renamed, made arguments, or left out."""
    front: list[str] = []
    middle: list[str] = []
    end: list[str] = []
    rest = list(typed)
    while rest:
        word = rest.pop(0)
        flag = _spelling(name, word, own)
        meant = None if flag in own or not flag.startswith("-") else _meant(name, flag, own)
        glued = word[len(flag) :].removeprefix("=")
        if meant is None:
            middle.append(word)
        elif meant.startswith("--"):
            middle += [meant, glued] if glued else [meant]
        elif meant != DROPPED:
            value = [glued] if glued else rest[:1]
            rest = rest if glued else rest[1:]
            {FIRST: front, LAST: end}.get(meant, []).extend(value)
    return [*front, *middle, *end]


def misplaced_recipes(source: str, recipes: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong with the words given to quantize where they are in llama-quantize's order, or swapped."""
    names, numbers = ([each for each in recipes if each.isdecimal() is number] for number in (False, True))
    threads = f" --threads {numbers[-1]}" if numbers else ""
    outputs = [each for each in names if each.endswith(".gguf")]
    wanted = [each for each in names if each not in outputs]
    if outputs and not _is_recipe(source):
        typed = shlex.join([source, *(wanted or ["RECIPE"]), "--output", outputs[0]])
        return f"{outputs[0]!r} is no recipe", f"type `gguftools quantize {typed}{threads}`"
    if _is_recipe(source) and not Path(source).exists() and (outputs or any(Path(each).exists() for each in names)):
        file = outputs[0] if outputs else next(each for each in names if Path(each).exists())
        typed = shlex.join([file, source, *(each for each in names if each != file)])
        return f"{source!r} is a recipe; the model comes first", f"type `gguftools quantize {typed}`"
    if names and numbers:
        return f"is {numbers[0]} a recipe or the number of threads?", f"for threads type --threads {numbers[0]}"
    return None


def misplaced_words(words: Sequence[str], remove: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong with the words given to set-metadata where one of them is no assignment."""
    bare = [word for word in words if "=" not in word]
    if not bare:
        return None
    hint = "KEY=VALUE sets a key, --remove KEY removes one"
    if remove:
        hint = f"each key has an option of its own: --remove {remove[-1]} --remove {bare[0]}"
    elif len(words) > 1 and words[0] == bare[0]:
        hint = f"type {shlex.quote(f'{words[0]}={words[1]}')}"
    return f"{bare[0]!r} is not of the form KEY=VALUE", hint


def _is_recipe(word: str) -> bool:
    from gguftools.quantization.recipes import RECIPES

    return any(word.upper() in (recipe.name, *recipe.aliases) for recipe in RECIPES.values())
