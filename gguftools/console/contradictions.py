"""Options that do not go together, or mean nothing without another: a call with them is wrong, nothing is ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ARGUMENTS = ("source", "recipes")
ONE_FORM = "the result has one form"
# Command ("": all of them) → an option, those it does not go with ("*": all but these), why.
APART: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "": [("quiet", "verbose", "one wants to hear less, the other more")],
    "architectures": [("json", "markdown", ONE_FORM)],
    "convert": [
        ("lora", "merge_lora predictor imatrix pre embed_tokenizer resume check_logits",
         "an adapter's own file has the adapter alone"),
        ("resume", "merge_lora predictor", "what an interrupted run left does not say with which it was made"),
    ],
    "diff": [("vocab", "all_tensors", "vocabularies are compared, not tensors")],
    "hash": [
        ("check", "xxh64 sha1 sha256 uuid all no_tensors output", "the manifest says what is compared"),
    ],
    "perplexity": [("running", "json", "the JSON has the value after every window")],
    "quantize": [
        ("list_recipes", "*json", "recipes are listed and nothing is quantized"),
        ("leave_output_tensor", "output_tensor_type", "output.weight stays as it is or gets another format"),
        ("include_weights", "exclude_weights", "weights are included or excluded"),
        ("keep_split", "split_max_size split_max_tensors", "shards stay as they are or are cut anew"),
        ("dry_run", "check_tensors resume statistics", "no tensor is read"),
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
}  # fmt: skip
# Command → an option that means nothing without another.
NEEDS: Mapping[str, Mapping[str, str]] = {
    "hash": {"overwrite": "output"},
    "imatrix-info": {"overwrite": "merge"},
    "perplexity": {"no_dense": "sparse"},
    "quantize": {"include_weights": "imatrix", "exclude_weights": "imatrix", "allow_missing_experts": "imatrix"},
    "set-metadata": {"overwrite": "output"},
}


def refuse_contradictions(command: Callable[..., None], options: Mapping[str, Any]) -> None:
    """End the program as a wrong call where the values of a command's options contradict each other."""
    defaults = {name: each.default for name, each in inspect.signature(command).parameters.items()}
    given = {name for name, value in options.items() if value not in (None, [], False, defaults.get(name))}
    if wrong := _contradiction(command.__name__.replace("_", "-"), given):
        from .ui import usage

        usage(*wrong)


def _contradiction(command: str, given: set[str]) -> tuple[str, str] | None:
    for one, others, why in (*APART[""], *APART.get(command, ())):
        wrong = given - {one, *others[1:].split()} if others.startswith("*") else given & set(others.split())
        if one in given and wrong:
            return f"{flag(one)} does not go with {flag(min(wrong))}", why
    for one, other in NEEDS.get(command, {}).items():
        if one in given and other not in given:
            return f"{flag(one)} means nothing without {flag(other)}", f"add {flag(other)}, or leave it out"
    return None


def flag(name: str) -> str:
    """What is typed for an option of this name."""
    return name.upper() if name in ARGUMENTS else f"--{name.replace('_', '-')}"
