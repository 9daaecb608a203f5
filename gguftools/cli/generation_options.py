"""Define the options of commands that generate text, and convert them to sampling parameters."""

from dataclasses import dataclass
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
OWN_PARAMETERS = (  # parameters of sampling that share their names with options
    "top_k",
    "top_p",
    "min_p",
    "samplers",
    "seed",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
)
Ctx = Annotated[
    int | None,
    Option("--ctx", "-c", min=4, help="Context size in tokens: of prompt and answer (default: the model's own)."),
]
CacheTypeName = Annotated[str, "Type of the KV cache: f32, f16 or q8_0."]


@dataclass(frozen=True)
class SamplingOptions:
    """Options for sampling, and for the end of a text."""

    temp: Annotated[float | None, "Temperature: 0 takes the most likely token (default: the file's, or 0.8)."] = None
    top_k: Annotated[
        int | None, Option(metavar="K", help="Top-k: sample from the K most likely tokens (0 = all, default 40).")
    ] = None
    top_p: Annotated[float | None, "Top-p: sample from the most likely tokens that sum to this (default 0.95)."] = None
    min_p: Annotated[
        float | None, "Min-p: sample from tokens at least this times as likely as the top one (default 0.05)."
    ] = None
    samplers: Annotated[str | None, "Samplers in order, e.g. top_k;temperature or kt."] = None
    sampling: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Another parameter, e.g. mirostat=2 or xtc_probability=0.5."),
    ] = None
    repeat_last_n: Annotated[
        int | None, Option(min=0, help="Number of latest tokens that penalties look at (default 64).")
    ] = None
    repeat_penalty: Annotated[float | None, "Repetition penalty (1 = off)."] = None
    presence_penalty: Annotated[
        float | None, "Presence penalty: subtracted from logits of tokens that came before (default 0)."
    ] = None
    frequency_penalty: Annotated[
        float | None, "Frequency penalty: subtracted for each time that a token came before (default 0)."
    ] = None
    seed: Annotated[int | None, Option(min=0, max=2**32 - 1, help="Random seed: random if not given.")] = None
    stop: Annotated[list[str] | None, "Stop at this text, and leave it out."] = None
    bad_words: Annotated[list[str] | None, Option(metavar="TEXT", help="Never write this text.")] = None
    grammar: Annotated[Path | None, Option(metavar="FILE", help="GBNF grammar that the text must follow.")] = None
    json_schema: Annotated[Path | None, Option(metavar="FILE", help="JSON schema that the text must follow.")] = None

    def parameters(self, metadata: "Metadata", **fixed: Any) -> "Sampling":
        """Return the parameters of sampling: as they are given, else as the file advises. fixed: what no file advises.

        Raises OptionError for one that its own option and --sampling give.
        """
        from quants.errors import OptionError
        from quants.spelling import quote
        from runtime.sampling.parameters import Sampling, advised, parse_parameters

        own = {"temperature": self.temp} | {name: getattr(self, name) for name in OWN_PARAMETERS}
        given = {name: value for name, value in own.items() if value is not None}
        parsed = parse_parameters(self.sampling or ())
        if twice := sorted(given.keys() & parsed.keys()):
            raise OptionError(f"{twice[0]} is given twice: {quote(given[twice[0]])} and {quote(parsed[twice[0]])}")
        return Sampling(**advised(metadata) | given | parsed | fixed)

    def rules(self) -> dict[str, Any]:
        """Return the texts of the grammar and the schema, as options of the library."""
        from archs.bounded_files import GRAMMAR, JSON_SCHEMA, read_text

        return {
            "grammar": None if self.grammar is None else read_text(self.grammar, GRAMMAR),
            "json_schema": None if self.json_schema is None else read_text(self.json_schema, JSON_SCHEMA),
        }
