"""Tell which options exclude each other and which need another one, so that none is ignored."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

# Parameter of a library function → the name of the option, where it is another.
OPTION_OF: Mapping[str, str] = {
    "all": "all_parts",
    "children": "draft_tree",
    "donors": "from",
    "executor": "workers",
    "leave_output": "leave_output_tensor",
    "max_size": "split_max_size",
    "max_tensors": "split_max_tensors",
    "n_ctx": "ctx",
    "output_type": "output_tensor_type",
    "reader": "for",
    "rules": "tensor_type",
    "cost_model": "plan",
    "text": "file",
}
OPTIONS_OF: Mapping[str, Mapping[str, str]] = {
    "card": {"base_model": "original"},
    "imatrix-info": {"output": "merge"},
    "release": {"base_model": "original"},
}  # the same, of some commands
ARGUMENTS = ("source", "recipes")
ONE_FORM = "choose one output format"
ONE_POOL = "choose local processes or a Dask scheduler"
ONE_DEVICE = "workers compute on processors"
PLANNED = "--plan estimates one plain run, for cards by name, and runs nothing"
PLAN_NEEDS = {"card": "plan", "device_memory": "device plan", "fast": "device plan"}
Rule = tuple[str, str, str]
# Command ("": all) → an option, those that it excludes ("*": all but these), why.
EXCLUSIONS: Mapping[str, Sequence[Rule]] = {
    "": [("quiet", "verbose", "one prints less, the other more")],
    "attest": [("verify", "manifest_file recipe imatrix output sign overwrite", "--verify only checks a statement")],
    "architectures": [("json", "markdown", ONE_FORM)],
    "convert": [  # besides those of the library
        ("part", "lora mmproj all_parts mtp", "choose one part"),
        (
            "check_logits",
            "lora mmproj all_parts mtp target_model_dir task part",
            "logits are those of the whole text model",
        ),
        ("workers", "scheduler", ONE_POOL),
        ("plan", "scheduler check_logits", "--plan writes nothing"),
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
        ("workers", "scheduler", ONE_POOL),
        ("device", "workers scheduler", ONE_DEVICE),
        ("save_base", "workers scheduler", "this process saves the base itself"),
        ("top_k", "with_output", "a top-k base needs no output matrix"),
    ],
    "chat": [("grammar", "json_schema", "a text follows one of them")],
    "draft-check": [("json", "markdown", ONE_FORM)],
    "evaluate": [("json", "markdown", ONE_FORM)],
    "embed": [("prompt", "prompts", "choose one of them")],
    "export": [("mmproj", "tensors", "--tensors reads one file")],
    "imatrix": [
        ("workers", "scheduler", ONE_POOL),
        ("device", "workers scheduler", ONE_DEVICE),
        (
            "plan",
            "device workers scheduler skip_chunks process_output nextn precision save_every resume overwrite",
            PLANNED,
        ),
    ],
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
    "hash": [("check", "xxh64 sha1 sha256 uuid all no_tensors output", "the manifest names the hashes")],
    "perplexity": [
        ("running", "json", "the JSON contains the value after every chunk"),
        ("plan", "running sparse no_dense profile precision round_activations", PLANNED),
        ("device", "sparse profile", "it is for models that the processor computes"),
        ("round_activations", "precision", "it means --precision llama.cpp"),
    ],
    "quantize": [
        ("list_recipes", "*json", "--list-recipes quantizes nothing"),
        ("leave_output_tensor", "output_tensor_type", "output.weight is either left unquantized or given a format"),
        ("include_weights", "exclude_weights", "choose to include or to exclude weights"),
        ("keep_split", "split_max_size split_max_tensors", "choose the source's shards or new ones"),
        ("dry_run", "check_tensors resume statistics manifest", "--dry-run reads no tensor"),
        ("workers", "scheduler", ONE_POOL),
        (
            "plan",
            "scheduler gptq target_size target_bpw frontier dry_run manifest resume check_tensors statistics",
            "--plan writes nothing",
        ),
        ("dry_run", "workers scheduler", "--dry-run has no work to share"),
        ("device", "workers scheduler", ONE_DEVICE),
        ("frontier", "workers scheduler", "the search runs in this process"),
        ("target_size", "target_bpw", "choose one target"),
        ("frontier", "target_size target_bpw gptq imatrix dry_run resume manifest", "--frontier writes no model"),
        ("target_size", "pure", "the search chooses types by its own measurements"),
        ("target_bpw", "pure", "the search chooses types by its own measurements"),
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
    "upload": [("create_pr", "revision private", "a pull request is opened in a repository, against main")],
    "split": [("split_max_size", "split_max_tensors", "choose one limit")],
}
# Command → an option that means nothing without another, or one of others.
NEEDS: Mapping[str, Mapping[str, str]] = {
    "": {"device_memory": "device", "fast": "device"},
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
    "imatrix": PLAN_NEEDS,
    "perplexity": {"no_dense": "sparse", **PLAN_NEEDS},
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
        "device": "gptq target_size target_bpw frontier",
    },
    "report": {"overwrite": "html"},
    "reproduce": {"seed": "sample"},
    "set-metadata": {"overwrite": "output"},
}


def exclusions(command: Any) -> Sequence[Rule]:
    """Return a command's rules, and those of the library: an option, what it excludes ("*": all but these), why."""
    rules = EXCLUSIONS.get(str(command.name), ())
    if command.name != "convert":
        return rules
    from ..conversion.options import EXCLUSIONS as OF_LIBRARY
    from ..conversion.options import PARTS

    parts = [_name(part) for part in PARTS if part != "model"]
    one_part = [(part, " ".join(parts[i + 1 :]), "choose one part") for i, part in enumerate(parts[:-1])]
    options = {each.name for each in command.params}
    library_rules = [
        (_name(one), " ".join(name for name in map(_name, others.split()) if name in options), in_options(why, command))
        for one, others, why in OF_LIBRARY
    ]
    return (*rules, *one_part, *library_rules)


def contradiction(command: Any, given: Set[str]) -> tuple[str, str] | None:
    """Return what is wrong, and why, where given options exclude each other or lack one that they need."""
    for one, others, why in (*EXCLUSIONS[""], *exclusions(command)):
        wrong = given - {one, *others[1:].split()} if others.startswith("*") else given & set(others.split())
        if one in given and wrong:
            return f"{flag(one)} cannot be combined with {flag(min(wrong))}", why
    for one, other in {**NEEDS[""], **NEEDS.get(str(command.name), {})}.items():
        if one in given and not given & set(other.split()):
            needed = " or ".join(map(flag, other.split()))
            return f"{flag(one)} needs {needed}", f"add {flag(other.split()[0])}, or leave out {flag(one)}"
    return None


def flag(name: str) -> str:
    """Return the spelling of an option of this name."""
    return name.upper() if name in ARGUMENTS else f"--{name.replace('_', '-')}"


def in_options(text: str, command: Any) -> str:
    """Return a text of the library with a command's options in place of parameters: of `overwrite`, of part="mtp"."""
    own = {spelling for each in command.params for spelling in (*each.opts, *each.secondary_opts)}

    def option(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        spelling = flag(OPTIONS_OF.get(str(command.name), {}).get(name) or _name(name))
        return spelling if spelling in own else match[0]

    return re.sub(r"`([a-z][a-z_]*)`|part=\"([a-z]+)\"", option, text)


def _name(parameter: str) -> str:
    return OPTION_OF.get(parameter, parameter)
