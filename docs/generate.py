"""Write architectures.md from the registry and options.md from the commands: python docs/generate.py [--check]."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

from archs.registry import architectures
from gguftools.console.app import build_app
from gguftools.console.contradictions import APART, NEEDS, flag
from gguftools.console.usage import ALIASES, DROPPED, DROPPED_WITH_VALUE, ELSEWHERE, OTHERWISE, PROGRAMS, options_of

FOLDER = Path(__file__).resolve().parent

HEAD = """\
# Architectures

Written by `docs/generate.py` from the registry; `gguftools architectures` prints the same. All of them are converted and
run; the results are checked against the original models' logits (`make zoo`, `tests/archs/test_more_families.py`), and
those of random options of each (`tests/archs/test_options.py`; `make verify` draws others, beside transformers). Of
models with towers for pictures or sounds the text part is converted: also of those whose class is not listed, if their
`text_config` is of a model type that is (Llava, InternVL, SmolVLM, Voxtral, …).

```console
$ gguftools architectures
$ gguftools architectures --json
```

"""

TAIL = """
## Keys that we add

Files have the keys of llama.cpp's converter. Where that drops what the model computes with, ours is added; a reader that
does not know it is no worse off than before. NAME is the architecture's.

| key | type | written when | meaning |
|---|---|---|---|
| `NAME.attention.sliding_window` | uint32 | Mistral, Qwen2, StarCoder2, … with a window | keys at this distance or more are hidden |
| `NAME.attention.sliding_window_pattern` | uint32 or bool array | layers differ otherwise than the architecture's own rule | every how many layers one sees everything (0: all are windowed, 1: none is), or a flag for each layer |
| `NAME.attention.scale` | float32, or an array | q·k is not scaled by the head's width (Gemma's `query_pre_attn_scalar`, …) | the factor; an array where layers differ (GPT-2's `scale_attn_by_inverse_layer_idx`) |
| `NAME.hidden_activation` | string | the activation is not the architecture's usual one | Hugging Face's name of it |
| `NAME.logit_scale` | float32 | T5 and UMT5 with a tied head | factor of the logits |
| `NAME.tied_logit_scale` | float32 | Falcon-H1 with a tied head | factor of the logits where the embedding, which has its own multiplier in it, is the head |
| `NAME.rope.scaling.dynamic_factor` | float32 | rotary scaling of type dynamic | its factor; stretched past `context_length` |
| `NAME.rope.scaling.attn_factor` | float32 | yarn with two scales (`mscale`, `mscale_all_dim`) that differ; longrope outside Phi | what cos and sin are multiplied by, for yarn relative to what it computes itself |
| `NAME.rope.scaling.yarn_truncate` | bool | yarn with `truncate: false` (GPT-OSS) | whether the range of pairs is rounded to whole ones |
| `NAME.rope.scaling.original_context_length` | uint32 | GLM | the context length; the reference writes the hidden width as `context_length` |
| `NAME.rope.freq_base` | float32 | not 10000 where the reference has no such key | base of the rotary frequencies |
| `NAME.no_rope_layers` | bool array | SmolLM3, Llama 4 with an unusual choice | which layers do not rotate |
| `NAME.attention.rope_pattern` | bool array | Granite with windows, where some layers do not rotate; Cohere 2 MoE with dense layers of an unusual kind | which layers rotate |
| `NAME.attention.latent_norm_epsilon` | float32 | latent attention (DeepSeek, GLM 4.7 Flash, …) where other norms have another | epsilon of the norms of latents |
| `NAME.attention.temperature_scale`, `NAME.attention.temperature_length` | float32, uint32 | Mistral 4; Llama 4 with unusual values | by how much queries grow with the logarithm of how often so many positions have passed |
| `NAME.attention.chunk_length` | uint32 | Llama 4 with another than 8192 | attention stays within chunks of so many tokens |
| `NAME.attention.normed` | bool | Llama 4 with an unusual choice | whether q and k are normalised, without weights |
| `NAME.embedding_scale` | float32 | Trinity without `mup_enabled` | factor of the embedding |
| `NAME.attention.max_alibi_bias` | float32 | Falcon-RW, Baichuan 13B | the largest slope of ALiBi |
| `NAME.use_parallel_residual` | bool | Falcon-RW | attention and feed-forward net one after the other |
| `NAME.ssm.dt_b_c_rms_epsilon`, `NAME.ssm.time_step_min` | float32 | Falcon-Mamba, Mamba 2 where they matter | epsilon of those norms; lower bound of the step |
| `NAME.ssm.time_step_max`, `NAME.ssm.norm_before_gate` | float32, bool | Mamba 2 variants with unusual values | upper bound of the step; order of norm and gate |
| `NAME.attention.clamp_kqv` | float32 | OLMoE with `clip_qkv` | bound of q, k and v |
| `NAME.attention.head_count_kv`, `NAME.attention.key_length`, `NAME.attention.value_length` | uint32 | MPT, GLM with unusual heads | as in other architectures |
| `NAME.attention.relative_max_distance` | uint32 | T5 with an unusual one | where the last bucket of relative positions begins |
| `NAME.expert_gating_func`, `NAME.expert_weights_scale` | uint32, float32 | GLM 4.7 Flash; LFM2 with experts | as in other architectures |
| `NAME.expert_weights_norm` | bool | Qwen MoE, OLMoE, LFM2 with experts where it is not their usual one | whether the chosen experts' weights are made to sum to one |
| `NAME.expert_router_jitter` | float32 | Phi-3.5-MoE with an unusual one | bound of its sparse mixer |
| `NAME.swiglu_limit` | float32 | GPT-OSS with an unusual one | bound of its gated unit |
| `tokenizer.huggingface.added_tokens` | string | added tokens whose recognition GGUF's types can't express | a JSON list with ids and flags |
| `tokenizer.huggingface.ignore_merges` | bool | the pre-tokenizer's name implies otherwise | whole words in the vocabulary win over merges |
| `tokenizer.huggingface.normalizer`, `tokenizer.ggml.normalizer.nfc` | string, bool | the pre-tokenizer's name implies another normalizer | what text goes through first |
| `tokenizer.huggingface.json` | string | `--embed-tokenizer` | `tokenizer.json` itself |

Where others disagree, the code that a model was published with decides:

- umT5 has a head of its own, whose logits are not scaled (`tie_word_embeddings: false`; T5X's `logits_via_embedding =
  False`). transformers 5 takes `tie_word_embeddings` for true whatever the config says, and scales that head as well.
  Without a head of its own in the checkpoint the embedding is the head, and scaled.
- Hunyuan's end of text is what generation_config.json and config.json say (`eos_token_id`). llama.cpp's converter writes
  3 when it runs with transformers 5: that is what transformers means by another key, `eod_token_id`, which the
  checkpoint does not have.

OPT has no name in llama.cpp; its files use `opt`, GPT-2's tensor names, BERT's for norms after each part, and
`token_embd_proj.weight` / `output_proj.weight` for the 350m variant's projections.
"""


OPTIONS_HEAD = """\
# Options and commands

Written by `docs/generate.py` from the commands. An option has one meaning, whichever command has it; what a command adds
stands behind its name. `gguftools COMMAND --help` explains the arguments and shows examples.

Nothing that is given is ignored: options that contradict each other, or mean nothing without another, are wrong calls (exit
code 2), and so are empty arguments. A wrong value of what a file holds ends with exit code 1. `--threads` and `--memory` are
bounds and go with everything. Unknown options, commands, keys, recipes and formats are answered with what may be meant.

"""


def architectures_page() -> str:
    rows = [(a.name, ", ".join(a.hf_classes), ", ".join(a.vocab)) for a in architectures()]
    return HEAD + table(("GGUF name", "Hugging Face classes", "vocabularies"), rows) + TAIL


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in (columns, *rows)]
    return lines[0] + "|---" * len(columns) + "|\n" + "".join(lines[1:])


def options_page() -> str:
    program: Any = typer.main.get_command(build_app())
    commands = program.commands
    summaries = [(f"`{name}`", command.help.partition("\n\n")[0]) for name, command in commands.items()]
    parts = [
        OPTIONS_HEAD, table(("command", ""), summaries), "\n## All options\n\n",
        table(("option", "meaning", "commands"), option_rows(commands, program)),
        "\n## What does not go together\n\n", table(("command", "option", "not with", "because"), apart_rows()),
        "\n## Coming from llama.cpp\n\nAn option of its programs is answered with the whole call as it is typed here.\n\n",
        table(("its program or script", "here"), program_rows()),
        "\n", table(("its option", "here", "commands"), elsewhere_rows(commands)),
        "\nOlder spellings are accepted: ", "; ".join(older_spellings()), ".\n",
    ]  # fmt: skip
    return "".join(parts)


def option_rows(commands: Mapping[str, Any], program: Any) -> Iterator[tuple[str, str, str]]:
    """Of every option its spellings, its meaning with what commands add to it, and the commands."""
    found: dict[str, dict[str, Any]] = {}
    in_front = {option.opts[0]: {"": option} for option in program.params}
    for name, command in commands.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                found.setdefault(option.opts[0], {})[name] = option
    found = in_front | found
    for of_commands in (found[name] for name in sorted(found)):
        first = next(iter(of_commands.values()))
        flags = ", ".join(f"`{each}`" for each in (*first.opts, *first.secondary_opts))
        meanings = {name: meaning_of(option) for name, option in of_commands.items()}
        details = [f"{name}: {detail}" for name, (_, detail) in meanings.items() if detail]
        text = next(iter(meanings.values()))[0]
        if len(of_commands) == 1 and details:
            text, details = next(iter(of_commands.values())).help, []
        whose = "all" if len(of_commands) == len(commands) else ", ".join(of_commands) or "in front of the command"
        yield flags, "; ".join([text.rstrip("."), *details]), whose


def meaning_of(option: Any) -> tuple[str, str]:
    """The meaning that an option has everywhere, and what a command adds behind a colon."""
    meaning, _, detail = option.help.rstrip(".").partition(": ")
    return meaning, detail


def apart_rows() -> Iterator[tuple[str, str, str, str]]:
    for command, entries in APART.items():
        for one, others, why in entries:
            but = [f"`{flag(each)}`" for each in others.removeprefix("*").split()]
            whom = f"all but {', '.join(but)}" if others.startswith("*") else ", ".join(but)
            yield f"`{command}`" if command else "all", f"`{flag(one)}`", whom, why
    for command, needed in NEEDS.items():
        for one, other in needed.items():
            yield f"`{command}`", f"`{flag(one)}`", f"no `{flag(other)}`", "it means nothing alone"


def program_rows() -> Iterator[tuple[str, str]]:
    for new in dict.fromkeys(PROGRAMS.values()):
        olds = [old for old, meant in PROGRAMS.items() if meant == new and re.search("llama|gguf", old)]
        if olds:
            yield ", ".join(f"`{old}`" for old in olds), f"`gguftools {new}`"


def elsewhere_rows(commands: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What other programs call an option, all that mean the same in one row."""
    for command, flags in ELSEWHERE.items():
        for new in dict.fromkeys(flags.values()):
            olds = ", ".join(f"`{old}`" for old, meant in flags.items() if meant == new)
            here = "leave it out" if new in (DROPPED, DROPPED_WITH_VALUE) else f"`{new}`" if new[0] == "-" else new
            having = [name for name, each in commands.items() if new in options_of(each)]
            yield olds, here, f"`{command}`" if command else ", ".join(having) or "all"
    for command, remarks in OTHERWISE.items():
        for old, text in remarks.items():
            yield f"`{old}`", text, f"`{command}`"


def older_spellings() -> Iterator[str]:
    for command, flags in ALIASES.items():
        for old, new in flags.items():
            yield f"`{command} {old}` for `{new}`"


PAGES = {"architectures.md": architectures_page, "options.md": options_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        path = FOLDER / name
        if "--check" not in sys.argv:
            path.write_text(make(), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != make():
            sys.exit(f"{name} is stale")
