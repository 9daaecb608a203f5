"""Turn wrong calls into one line and a hint; list the options that exclude or need each other."""

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from typing import Any

import typer

from .calls import GATHERED, parse_call
from .corrections import completed, correct, read_call
from .elsewhere import NOT_HERE, PROGRAMS
from .options import MODEL_SPELLINGS

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's, or that of the click within newer typers
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
# Parameter of a function → the option that it is, where its name is another.
OPTION_OF: Mapping[str, str] = {
    "all": "--all-parts",
    "donors": "--from",
    "executor": "--workers",
    "leave_output": "--leave-output-tensor",
    "max_size": "--split-max-size",
    "max_tensors": "--split-max-tensors",
    "n_ctx": "--ctx",
    "output_type": "--output-tensor-type",
    "rules": "--tensor-type",
    "cost_model": "--plan",
    "text": "--file",
}
A_NUMBER = "X"  # value name in help of a number that need not be whole
# Options that exclude each other, or need another: nothing is ignored.
ARGUMENTS = ("source", "recipes")
ONE_FORM = "choose one output format"
# Command ("": all) → an option, those that it excludes ("*": all but these), why.
APART: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "": [("quiet", "verbose", "one prints less, the other more")],
    "attest": [
        ("verify", "manifest_file recipe imatrix output sign overwrite", "--verify checks a statement and writes none")
    ],
    "architectures": [("json", "markdown", ONE_FORM)],
    "convert": [
        (
            "lora",
            "merge_lora predictor imatrix pre embed_tokenizer resume check_logits fallback rounded_grids manifest",
            "--lora writes only the adapter",
        ),
        ("workers", "scheduler", "choose local processes or a Dask scheduler"),
        ("plan", "scheduler lora predictor merge_lora check_logits manifest resume", "--plan writes nothing"),
        (
            "mmproj",
            "lora merge_lora predictor imatrix pre embed_tokenizer manifest check_logits all_parts",
            "--mmproj writes only the encoder",
        ),
        ("all_parts", "lora plan check_logits", "--all-parts writes two files"),
        (
            "target_model_dir",
            "lora merge_lora predictor mmproj all_parts mtp no_mtp manifest check_logits",
            "a draft model has none of these",
        ),
        (
            "sentence_transformers_dense_modules",
            "lora predictor mmproj all_parts mtp no_mtp manifest target_model_dir",
            "Dense modules belong to an embedding model's own file",
        ),
        (
            "task",
            "lora predictor mmproj manifest target_model_dir check_logits",
            "--task chooses weights of an embedding model's own file",
        ),
        ("mtp", "no_mtp lora predictor mmproj all_parts manifest check_logits", "--mtp writes only the MTP layers"),
        ("no_mtp", "lora predictor mmproj manifest", "--no-mtp applies only to the text model's own file"),
        ("manifest", "merge_lora predictor", "a manifest cannot describe it"),
        ("resume", "merge_lora predictor", "the interrupted run does not record it"),
    ],
    "diff": [
        ("vocab", "all_tensors errors identify imatrix", "--vocab compares only vocabularies"),
        ("errors", "all_tensors identify", "--errors lists all tensors"),
        ("identify", "all_tensors", "--identify lists only tensors that differ from the recipe"),
    ],
    "divergence": [
        ("json", "markdown", ONE_FORM),
        ("round_activations", "precision", "it means --precision llama.cpp"),
        ("worst", "json", "the JSON contains them"),
        ("workers", "scheduler", "choose local processes or a Dask scheduler"),
        ("save_base", "workers scheduler", "this process saves the base itself"),
        ("top_k", "with_output", "a top-k base needs no output matrix"),
    ],
    "chat": [("grammar", "json_schema", "a text follows one of them")],
    "draft-check": [("json", "markdown", ONE_FORM)],
    "evaluate": [("json", "markdown", ONE_FORM)],
    "embed": [("prompt", "prompts", "choose one of them")],
    "export": [("mmproj", "tensors", "--tensors reads one file")],
    "imatrix": [("workers", "scheduler", "choose local processes or a Dask scheduler")],
    "generate": [
        ("grammar", "json_schema", "text can follow only one of them"),
        ("draft", "draft_lookup draft_mtp", "only one way of drafting is possible"),
        ("draft_lookup", "draft_mtp", "only one way of drafting is possible"),
        ("draft_lookup", "draft_tree draft_min_p", "prompt lookup has no probabilities"),
        ("image", "draft draft_mtp", "draft models read no images"),
        ("audio", "draft draft_mtp", "draft models read no audio"),
    ],
    "graft": [
        ("file", "imatrix", "experts are scored by a text or by a matrix"),
        ("dry_run", "measure", "--dry-run writes no file to measure"),
    ],
    "graph": [
        ("json", "dot", ONE_FORM),
        ("dot", "values against save all", "--dot draws only the graph"),
        ("values", "against", "choose to show or to compare values"),
        ("prompt", "tokens", "choose a text or token ids"),
    ],
    "hash": [
        ("check", "xxh64 sha1 sha256 uuid all no_tensors output", "the manifest decides which hashes are compared")
    ],
    "perplexity": [
        ("running", "json", "the JSON contains the value after every chunk"),
        ("round_activations", "precision", "it means --precision llama.cpp"),
    ],
    "quantize": [
        ("list_recipes", "*json", "--list-recipes quantizes nothing"),
        ("leave_output_tensor", "output_tensor_type", "output.weight is either left unquantized or given a format"),
        ("include_weights", "exclude_weights", "choose to include or to exclude weights"),
        ("keep_split", "split_max_size split_max_tensors", "choose the source's shards or new ones"),
        ("dry_run", "check_tensors resume statistics manifest", "--dry-run reads no tensor"),
        ("workers", "scheduler", "choose local processes or a Dask scheduler"),
        (
            "plan",
            "scheduler gptq target_size target_bpw frontier dry_run manifest resume check_tensors statistics",
            "--plan writes nothing",
        ),
        ("dry_run", "workers scheduler", "--dry-run has no work to share"),
        ("frontier", "workers scheduler", "the search runs in this process"),
        ("target_size", "target_bpw", "choose one target"),
        ("frontier", "target_size target_bpw gptq imatrix dry_run resume manifest", "--frontier writes no model"),
        ("target_size", "imatrix pure", "the search chooses types by its own measurements"),
        ("target_bpw", "imatrix pure", "the search chooses types by its own measurements"),
    ],
    "set-metadata": [
        ("recover", "roll_back", "choose to complete or to undo the interrupted edit"),
        ("dry_run", "recover roll_back", "they change the file"),
    ],
    "show": [
        ("key", "tensors markdown text", "--key prints the value unchanged"),
        ("text", "tensors json markdown", "the dump has one format and all tensors"),
        ("json", "markdown", ONE_FORM),
    ],
    "split": [("split_max_size", "split_max_tensors", "choose one limit")],
}
# Command → an option that means nothing without another, or one of others.
NEEDS: Mapping[str, Mapping[str, str]] = {
    "diff": {"sort": "errors", "full": "identify"},
    "divergence": {"top_k": "save_base", "with_output": "save_base"},
    "embed": {"overwrite": "output"},
    "generate": {
        "system": "chat",
        "logprobs": "json",
        "prompt_logprobs": "json",
        "length_penalty": "beam_width",
        "early_stopping": "beam_width",
        "draft_max": "draft draft_lookup draft_mtp",
        "draft_min_p": "draft draft_mtp",
        "draft_tree": "draft draft_mtp",
        "draft_typical": "draft draft_lookup draft_mtp",
        "image": "mmproj",
        "image_tokens": "image",
        "audio": "mmproj",
        "mmproj": "image audio",
    },
    "graft": {
        "file": "drop_experts",
        "imatrix": "drop_experts",
        "merge_experts": "drop_experts",
        "allow_requantize": "merge_experts",
    },
    "graph": {
        "prompt": "values against save",
        "tokens": "values against save",
        "precision": "values against save",
        "threads": "values against save",
        "tolerance": "against",
        "overwrite": "save",
    },
    "hash": {"overwrite": "output"},
    "imatrix-info": {"overwrite": "merge", "fill": "check_model", "min_rows": "merge"},
    "perplexity": {"no_dense": "sparse"},
    "convert": {"rate": "plan", "prices": "plan"},
    "quantize": {
        "rate": "plan",
        "prices": "plan",
        "include_weights": "imatrix",
        "exclude_weights": "imatrix",
        "allow_missing_experts": "imatrix",
        "plot": "frontier",
        "gptq_only": "gptq calibrate",
        "gptq_chunks": "gptq calibrate",
        "gptq_memory": "gptq",
    },
    "report": {"overwrite": "html"},
    "reproduce": {"seed": "sample"},
    "set-metadata": {"overwrite": "output"},
}


def gathered(command: str, words: Sequence[str]) -> list[str]:
    """Return the words of a call, with the values of an option that takes several joined into one."""
    found: list[str] = []
    begins: int | None = None
    for word in words:
        name, sign, value = word.partition("=")
        if word.startswith("-") and word != "-":
            begins = len(found) + 1 if name in SEVERAL_WORDS.get(command, ()) else None
            found += [name, value] if begins is not None and sign else [word]
        elif begins is not None and len(found) > begins:
            found[begins] += GATHERED + word
        else:
            found.append(word)
    return found


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


def contradiction(command: str, given: Set[str]) -> tuple[str, str] | None:
    """Return what is wrong, and why, where given options exclude each other or lack one that they need."""
    for one, others, why in (*APART[""], *APART.get(command, ())):
        wrong = given - {one, *others[1:].split()} if others.startswith("*") else given & set(others.split())
        if one in given and wrong:
            return f"{flag(one)} cannot be combined with {flag(min(wrong))}", why
    for one, other in NEEDS.get(command, {}).items():
        if one in given and not given & set(other.split()):
            needed = " or ".join(map(flag, other.split()))
            return f"{flag(one)} needs {needed}", f"add {flag(other.split()[0])}, or leave out {flag(one)}"
    return None


def flag(name: str) -> str:
    """Return the spelling of an option of this name."""
    return name.upper() if name in ARGUMENTS else f"--{name.replace('_', '-')}"


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
    of_type = getattr(parameter, "type", None)  # where other versions of typer have them
    low, high = (getattr(parameter, end, getattr(of_type, end, None)) for end in ("min", "max"))
    wanted = "a number" if parameter.metavar == A_NUMBER else "a whole number"
    bounds = " and ".join(f"at {word} {end}" for word, end in (("least", low), ("most", high)) if end is not None)
    found = f"{parameter.opts[0]} is {value!r}" if value is not None else f"{parameter.opts[0]} has another type"
    return f"{found}; {wanted}{f' of {bounds}' if bounds else ''} was expected"


def mistaken(command: Any, words: Sequence[str], before: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return what is wrong with the words of a call before they are parsed, and what to type instead; None if nothing.

    before: the words before the command.
    """
    name = str(command.name)
    call, known = read_call(command, words, before, ALIASES.get(name, {}), SEVERAL_WORDS.get(name, ()))
    return correct(call, known)


def in_options(text: str, command: Any) -> str:
    """What the library says of parameters, in the words of the command: `overwrite` and part="mtp" as its options."""
    own = options_of(command)

    def option(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        flag = OPTION_OF.get(name, f"--{name.replace('_', '-')}")
        return flag if flag in own else found[0]

    return re.sub(r"`([a-z][a-z_]*)`|part=\"([a-z]+)\"", option, text)


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
        return message[:1].lower() + message[1:], _behind(words, commands)
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
        return problem, "gguftools has no server and no downloads; `gguftools --help` lists the commands"
    return problem, did_you_mean(name, commands) or "`gguftools --help` lists the commands"


def _behind(words: Sequence[str], commands: Mapping[str, Any]) -> str:
    """Return what to type where an option stands before the command."""
    name = next((word for word in words if word in commands), "")
    if not name:
        return "options go after the command; `gguftools --help` lists the commands"
    place = words.index(name)
    return f"options go after the command: {_corrected(commands[name], [*words[place + 1 :], *words[:place]], ())}"


def _corrected(command: Any, words: Sequence[str], before: Sequence[str]) -> str:
    """Return what to type for a call with another command's name, with its other mistakes corrected."""
    if wrong := mistaken(command, words, before):
        return wrong[1]
    return f"type `{shlex.join(['gguftools', *before, str(command.name), *words])}`"


def options_of(command: Any) -> set[str]:
    """Return every spelling of a command's options."""
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}


def _instead(name: str, flag: str, commands: Mapping[str, Any]) -> str:
    """Return what to type where neither the command nor another program has an option."""
    from quants.spelling import did_you_mean

    own = options_of(commands[name])
    others = [other for other, command in commands.items() if flag in options_of(command)]
    if others and flag.startswith("--"):
        return f"it is an option of {' and '.join(others[:3])}"
    known = sorted(each for each in own if each.startswith("--"))
    return did_you_mean(flag, known) or f"`gguftools {name} --help` lists its options"
