"""Wrong calls end with one line and a hint; options that contradict each other."""

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from typing import Any

import typer

from .corrections import completed, correct, read_call
from .elsewhere import NOT_HERE, PROGRAMS

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]  # click's, or that of the click within newer typers
# Spellings that are accepted without being shown.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "audit": {"--tensors": "--tensor-values"},
    "convert": {"--check": "--check-logits", "--recipe": "--outtype"},
    "diff": {"--all": "--all-tensors"},
    "export": {"--max-shard-size": "--split-max-size"},
    "split": {"--max-size": "--split-max-size", "--max-tensors": "--split-max-tensors"},
}
# Options whose value is all words up to the next option; put together by what no word has in it.
SEVERAL_WORDS: Mapping[str, tuple[str, ...]] = {"graft": ("--from",)}
GATHERED = "\0"
A_NUMBER = "X"  # what stands for a number that need not be whole in help
# Options that do not go together, or mean nothing without another: nothing is ignored.
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
    "terms": "--plan",
    "text": "--file",
}
ARGUMENTS = ("source", "recipes")
ONE_FORM = "the result has one form"
# Command ("": all of them) → an option, those it does not go with ("*": all but these), why.
APART: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "": [("quiet", "verbose", "one wants to hear less, the other more")],
    "attest": [("verify", "manifest_file recipe imatrix output sign overwrite", "a statement is checked, not written")],
    "architectures": [("json", "markdown", ONE_FORM)],
    "convert": [
        (
            "lora",
            "merge_lora predictor imatrix pre embed_tokenizer resume check_logits fallback rounded_grids manifest",
            "an adapter's own file has the adapter alone",
        ),
        ("workers", "scheduler", "the work is done here or there"),
        ("plan", "scheduler lora predictor merge_lora check_logits manifest resume", "nothing is written"),
        (
            "mmproj",
            "lora merge_lora predictor imatrix pre embed_tokenizer manifest check_logits all_parts",
            "encoders are no text model",
        ),
        ("all_parts", "lora plan check_logits", "it writes two files"),
        (
            "target_model_dir",
            "lora merge_lora predictor mmproj all_parts mtp no_mtp manifest check_logits",
            "a draft has none of these",
        ),
        (
            "sentence_transformers_dense_modules",
            "lora predictor mmproj all_parts mtp no_mtp manifest target_model_dir",
            "they stand in an embedding model's own file",
        ),
        (
            "task",
            "lora predictor mmproj manifest target_model_dir check_logits",
            "it has weights in an embedding model's own file",
        ),
        ("mtp", "no_mtp lora predictor mmproj all_parts manifest check_logits", "these layers alone are no model"),
        ("no_mtp", "lora predictor mmproj manifest", "it says what the model's own file has"),
        ("manifest", "merge_lora predictor", "a manifest says nothing of these"),
        ("resume", "merge_lora predictor", "what an interrupted run left does not say with which it was made"),
    ],
    "diff": [
        ("vocab", "all_tensors errors identify imatrix", "vocabularies are compared, not tensors"),
        ("errors", "all_tensors identify", "errors are those of all tensors"),
        ("identify", "all_tensors", "tensors that are otherwise are listed"),
    ],
    "divergence": [
        ("json", "markdown", ONE_FORM),
        ("round_activations", "precision", "the first is the second's `llama.cpp`"),
        ("worst", "json", "the JSON has them"),
        ("workers", "scheduler", "the work is done here or there"),
        ("save_base", "workers scheduler", "a base is saved by the process that runs it"),
        ("top_k", "with_output", "a top-k base needs no output matrix"),
    ],
    "draft-check": [("json", "markdown", ONE_FORM)],
    "evaluate": [("json", "markdown", ONE_FORM)],
    "embed": [("prompt", "prompts", "texts are given here or there")],
    "export": [("mmproj", "tensors", "tensors by themselves come from one file")],
    "imatrix": [("workers", "scheduler", "the work is done here or there")],
    "generate": [
        ("grammar", "json_schema", "a text follows one of them"),
        ("draft", "draft_lookup draft_mtp", "there is one draft"),
        ("draft_lookup", "draft_mtp", "there is one draft"),
        ("draft_lookup", "draft_tree draft_min_p", "what stands in the text has no probability"),
        ("image", "draft draft_mtp", "drafts do not see images"),
        ("audio", "draft draft_mtp", "drafts do not hear sounds"),
    ],
    "graft": [
        ("file", "imatrix", "experts are scored by one or the other"),
        ("dry_run", "measure", "there is no output to measure"),
    ],
    "graph": [
        ("json", "dot", ONE_FORM),
        ("dot", "values against save all", "the list alone is drawn"),
        ("values", "against", "values are shown or compared"),
        ("prompt", "tokens", "a text is run, or these ids"),
    ],
    "hash": [("check", "xxh64 sha1 sha256 uuid all no_tensors output", "the manifest says what is compared")],
    "perplexity": [
        ("running", "json", "the JSON has the value after every window"),
        ("round_activations", "precision", "the first is the second's `llama.cpp`"),
    ],
    "quantize": [
        ("list_recipes", "*json", "recipes are listed and nothing is quantized"),
        ("leave_output_tensor", "output_tensor_type", "output.weight stays as it is or gets another format"),
        ("include_weights", "exclude_weights", "weights are included or excluded"),
        ("keep_split", "split_max_size split_max_tensors", "shards stay as they are or are cut anew"),
        ("dry_run", "check_tensors resume statistics manifest", "no tensor is read"),
        ("workers", "scheduler", "the work is done here or there"),
        (
            "plan",
            "scheduler gptq target_size target_bpw frontier dry_run manifest resume check_tensors statistics",
            "nothing is written",
        ),
        ("dry_run", "workers scheduler", "there is no work to share"),
        ("frontier", "workers scheduler", "a search runs the model in this process"),
        ("target_size", "target_bpw", "a file has one size"),
        ("frontier", "target_size target_bpw gptq imatrix dry_run resume manifest", "no model is written"),
        ("target_size", "imatrix pure", "the search measures the model as it is, and decides"),
        ("target_bpw", "imatrix pure", "the search measures the model as it is, and decides"),
    ],
    "set-metadata": [
        ("recover", "roll_back", "an interrupted edit is completed or undone"),
        ("dry_run", "recover roll_back", "these change the file"),
    ],
    "show": [
        ("key", "tensors markdown text", "a value is printed as it is"),
        ("text", "tensors json markdown", "the dump has one form and all tensors"),
        ("json", "markdown", ONE_FORM),
    ],
    "split": [("split_max_size", "split_max_tensors", "shards are bounded by one or the other")],
}
# Command → an option that means nothing without another, or one of others.
NEEDS: Mapping[str, Mapping[str, str]] = {
    "diff": {"sort": "errors", "full": "identify"},
    "divergence": {"top_k": "save_base", "with_output": "save_base"},
    "embed": {"overwrite": "output"},
    "generate": {
        "system": "chat",
        "logprobs": "json",
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
    "imatrix-info": {"overwrite": "merge", "fill": "check_model", "least_rows": "merge"},
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
    """The words of a call, those behind an option that takes several made one."""
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


def contradiction(command: str, given: Set[str]) -> tuple[str, str] | None:
    """What is wrong where options of a command that are given contradict each other, and why."""
    for one, others, why in (*APART[""], *APART.get(command, ())):
        wrong = given - {one, *others[1:].split()} if others.startswith("*") else given & set(others.split())
        if one in given and wrong:
            return f"{flag(one)} does not go with {flag(min(wrong))}", why
    for one, other in NEEDS.get(command, {}).items():
        if one in given and not given & set(other.split()):
            needed = " or ".join(map(flag, other.split()))
            return f"{flag(one)} means nothing without {needed}", f"add {flag(other.split()[0])}, or leave it out"
    return None


def flag(name: str) -> str:
    """What is typed for an option of this name."""
    return name.upper() if name in ARGUMENTS else f"--{name.replace('_', '-')}"


def given_twice(command: Any, words: Sequence[str], ctx: Any) -> str | None:
    """An option that has one value and is given a second one."""
    try:
        _, _, given = command.make_parser(typer.Context(command, parent=ctx)).parse_args(list(words))
    except USAGE_ERROR:
        return None  # said later
    for option in {each for each in given if given.count(each) > 1}:
        opposite = option.is_flag and {*option.opts, *option.secondary_opts}.intersection(words) > {*option.opts}
        if option.param_type_name == "option" and not option.multiple and (not option.is_flag or opposite):
            return str(option.opts[0])
    return None


def explain(error: Any, words: Sequence[str], commands: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong with a call in one line, and what to type instead."""
    name = next((word for word in words if word in commands), "")
    if not name or (error.ctx is not None and error.ctx.parent is None):
        return _wrong_command(error, words, commands)
    typed = list(words[words.index(name) + 1 :])
    message = error.format_message().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        flag = next((word.partition("=")[0] for word in typed if word.startswith(option)), option)
        return f"{name} has no option {flag}", _instead(name, flag, commands)
    hint = f"`gguftools {name} --help` says what it takes"
    parameter = getattr(error, "param", None)
    if parameter is not None and re.search(r"Input should be|is not (?:a valid|in the range)", message):
        return f"{name}: {_wrong_value(parameter, typed, commands[name])}", hint
    return f"{name}: {message[:1].lower()}{message[1:]}", hint


def _wrong_value(parameter: Any, typed: Sequence[str], command: Any) -> str:
    """What is wrong with an option's number: in our words, because typer gives those of a library that it calls."""
    call, _ = read_call(command, typed, (), {}, ())
    value = call.value_of((*parameter.opts, *parameter.secondary_opts))
    of_type = getattr(parameter, "type", None)  # where other versions of typer have them
    low, high = (getattr(parameter, end, getattr(of_type, end, None)) for end in ("min", "max"))
    wanted = "a number" if parameter.metavar == A_NUMBER else "a whole number"
    bounds = " and ".join(f"at {word} {end}" for word, end in (("least", low), ("most", high)) if end is not None)
    found = f"{parameter.opts[0]} is {value!r}" if value is not None else f"{parameter.opts[0]} is of another kind"
    return f"{found}; {wanted}{f' of {bounds}' if bounds else ''} was expected"


def mistaken(command: Any, words: Sequence[str], before: Sequence[str] = ()) -> tuple[str, str] | None:
    """What is wrong with the words of a call before they are parsed, and what to type instead; None for nothing known.

    before: the words in front of the command.
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
    """The hint of an error that a call ended with; what it shows of the same command keeps the options of the call."""
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
        return problem, f"here that is `gguftools {known or name}`: {line}"
    if name in NOT_HERE:
        return problem, "models are made, measured and tried here, not served"
    return problem, did_you_mean(name, commands) or "`gguftools --help` lists the commands"


def _behind(words: Sequence[str], commands: Mapping[str, Any]) -> str:
    """What to type where an option stands in front of the command."""
    name = next((word for word in words if word in commands), "")
    if not name:
        return "options go behind the command; `gguftools --help` lists the commands"
    place = words.index(name)
    return f"options go behind the command: {_corrected(commands[name], [*words[place + 1 :], *words[:place]], ())}"


def _corrected(command: Any, words: Sequence[str], before: Sequence[str]) -> str:
    """What to type for a call whose command was another word, its other mistakes corrected, too."""
    if wrong := mistaken(command, words, before):
        return wrong[1]
    return f"type `{shlex.join(['gguftools', *before, str(command.name), *words])}`"


def options_of(command: Any) -> set[str]:
    """Every spelling of a command's options."""
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}


def _instead(name: str, flag: str, commands: Mapping[str, Any]) -> str:
    """What to type where a command does not have an option, nor other programs."""
    from quants.spelling import did_you_mean

    own = options_of(commands[name])
    others = [other for other, command in commands.items() if flag in options_of(command)]
    if others and flag.startswith("--"):
        return f"{' and '.join(others[:3])} {'have' if others[1:] else 'has'} such an option"
    known = sorted(each for each in own if each.startswith("--"))
    return did_you_mean(flag, known) or f"`gguftools {name} --help` lists its options"
