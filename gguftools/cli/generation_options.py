"""Options of the commands that generate text, and the library's options that they stand for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from archs.metadata import Metadata
    from runtime.sampling.parameters import Sampling

SAMPLING_PANEL = {
    "Sampling": (
        "top_k",
        "top_p",
        "min_p",
        "samplers",
        "sampling",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "bad_words",
        "ignore_eos",
        "grammar",
        "json_schema",
    )
}
Ctx = Annotated[
    int | None,
    Option("--ctx", "-c", min=4, help="Context size in tokens: of prompt and answer (default: the model's own)."),
]
Temp = Annotated[float | None, Option(help="Temperature: 0 takes the most likely token (default: the file's, or 0.8).")]
TopK = Annotated[
    int | None, Option(metavar="K", help="Top-k: sample from the K most likely tokens (0 = all, default 40).")
]
TopP = Annotated[
    float | None, Option(help="Top-p: sample from the most likely tokens that sum to this (default 0.95).")
]
MinP = Annotated[
    float | None, Option(help="Min-p: sample from tokens at least this times as likely as the top one (default 0.05).")
]
Samplers = Annotated[str | None, "Samplers in order, e.g. top_k;temperature or kt."]
SamplingOption = Annotated[
    list[str] | None, Option(metavar="NAME=VALUE", help="Another parameter, e.g. mirostat=2 or xtc_probability=0.5.")
]
RepeatLastN = Annotated[int | None, Option(min=0, help="Number of latest tokens that penalties look at (default 64).")]
RepeatPenalty = Annotated[float | None, "Repetition penalty (1 = off)."]
PresencePenalty = Annotated[
    float | None, "Presence penalty: subtracted from logits of tokens that came before (default 0)."
]
FrequencyPenalty = Annotated[
    float | None, "Frequency penalty: subtracted for each time that a token came before (default 0)."
]
Seed = Annotated[int | None, Option(min=0, max=2**32 - 1, help="Random seed: random if not given.")]
Stop = Annotated[list[str] | None, "Stop at this text, and leave it out."]
BadWords = Annotated[list[str] | None, Option(metavar="TEXT", help="Never write this text.")]
GrammarFile = Annotated[Path | None, Option(metavar="FILE", help="GBNF grammar that the text must follow.")]
JsonSchema = Annotated[Path | None, Option(metavar="FILE", help="JSON schema that the text must follow.")]
CacheTypeName = Annotated[str, "Type of the KV cache: f32, f16 or q8_0."]


def sampling_of(
    metadata: "Metadata", given: Mapping[str, Any], others: Sequence[str] | None, fixed: Mapping[str, Any]
) -> "Sampling":
    """Return the parameters of sampling: what the file advises, under what is given.

    given: by options of their own, None where not. others: NAME=VALUE of --sampling. fixed: what nobody advises.
    Raises OptionError for one that is given twice.
    """
    from quants.errors import OptionError
    from quants.spelling import quote
    from runtime.sampling.parameters import Sampling, advised, parse_parameters

    chosen = {name: value for name, value in given.items() if value is not None}
    parsed = parse_parameters(others or ())
    if twice := sorted(chosen.keys() & parsed.keys()):
        raise OptionError(f"{twice[0]} is given twice: {quote(chosen[twice[0]])} and {quote(parsed[twice[0]])}")
    return Sampling(**advised(metadata) | chosen | parsed | dict(fixed))


def rules_of(grammar: Path | None, json_schema: Path | None) -> dict[str, Any]:
    """Return the texts of a grammar and a schema, as options of the library."""
    from archs.bounded_files import GRAMMAR, JSON_SCHEMA, read_text

    return {
        "grammar": None if grammar is None else read_text(grammar, GRAMMAR),
        "json_schema": None if json_schema is None else read_text(json_schema, JSON_SCHEMA),
    }
