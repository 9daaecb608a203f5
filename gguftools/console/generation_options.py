"""Options of the commands that generate text, and the library's options that they stand for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from archs.metadata import Metadata
    from runtime.sampling.parameters import Sampling

Ctx = Annotated[
    int | None, Option("--ctx", "-c", min=4, help="Context size in tokens, prompt and text; default: the model's.")
]
Temp = Annotated[float | None, Option(help="Temperature; 0 takes the likeliest token; default: the file's, or 0.8.")]
TopK = Annotated[int | None, Option(metavar="K", help="Sample from the K likeliest tokens (0: all); default 40.")]
TopP = Annotated[float | None, Option(help="Sample from the likeliest tokens that sum to this; default 0.95.")]
MinP = Annotated[
    float | None, Option(help="Sample from tokens at least this times as likely as the likeliest; default 0.05.")
]
Samplers = Annotated[str | None, "Samplers in order, as top_k;temperature or kt."]
SamplingOption = Annotated[
    list[str] | None, Option(metavar="NAME=VALUE", help="Another parameter, as mirostat=2 or xtc_probability=0.5.")
]
RepeatLastN = Annotated[int | None, Option(min=0, help="Latest tokens that penalties look at; default 64.")]
RepeatPenalty = Annotated[float | None, "Penalize tokens that came before; 1 is off."]
PresencePenalty = Annotated[float | None, "Subtract this from logits of tokens that came before; default 0."]
FrequencyPenalty = Annotated[float | None, "Subtract this for each time that a token came before; default 0."]
Seed = Annotated[int | None, Option(min=0, max=2**32 - 1, help="Random seed; default: another each time.")]
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


def rules_of(grammar: Path | None, json_schema: Path | None) -> dict[str, str | None]:
    """Return the texts of a grammar and a schema, as options of the library."""
    from archs.bounded_files import GRAMMAR, JSON_SCHEMA, read_text

    return {
        "grammar": None if grammar is None else read_text(grammar, GRAMMAR),
        "json_schema": None if json_schema is None else read_text(json_schema, JSON_SCHEMA),
    }
