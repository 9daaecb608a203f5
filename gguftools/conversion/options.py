"""Options of a conversion: one object, made once and passed on, and the check of combinations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quants.arguments import PathLike, as_path
from quants.errors import OptionError

from ..quantization.options import QuantizeOptions
from ..writing.options import WriteOptions, changed, shown

Part = Literal["model", "mmproj", "mtp", "lora", "all"]
PARTS: tuple[Part, ...] = ("model", "mmproj", "mtp", "lora", "all")


@dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion besides the type of weights.

    pre: the pre-tokenizer's GGUF name, if the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json in the file. check_tokenizer: compare the file's vocabulary with the checkpoint's own tokenizer on
    some hundred texts; a difference is a warning. merge_lora: PEFT folders to add to the weights, each with a scale if
    it is not 1. lora: with part="lora", the PEFT folder of the adapter to write for the base model. predictor: folder
    of the predictor for a PowerInfer file. no_mtp: leave out the MTP layers, which are in the model's file otherwise.
    sentence_transformers_dense_modules: also write the matrices that EmbeddingGemma multiplies pooled states with.
    target_model_dir: the folder of the target model of a draft; its config.json and tokenizer are read. task: write the
    weights of this task, of a checkpoint with weights for several (Jina v3). fallback: with the outtype "exact", the
    type of weights that no blocks hold exactly: F32, F16, BF16, Q8_0 or "auto". rounded_grids: with it, also use blocks
    that give the values of a BF16 or F16 weight after rounding to that type. quantize: more options of `quantize`.
    """

    pre: str | None = None
    embed_tokenizer: bool = False
    check_tokenizer: bool = True
    merge_lora: Sequence[PathLike | tuple[PathLike, float]] = ()
    lora: PathLike | None = None
    predictor: PathLike | None = None
    no_mtp: bool = False
    sentence_transformers_dense_modules: bool = False
    target_model_dir: PathLike | None = None
    task: str | None = None
    fallback: str = "auto"
    rounded_grids: bool = False
    quantize: QuantizeOptions | None = None

    def __repr__(self) -> str:
        return shown(self)

    def folders(self) -> list[PathLike]:
        """Return the folders that are read besides the checkpoint. Raises OptionError unless they are paths."""
        named = [(getattr(self, each), each) for each in ("lora", "predictor", "target_model_dir")]
        adapters = [each[0] if isinstance(each, tuple) else each for each in self.merge_lora]
        named += [(each, "merge_lora") for each in adapters]
        return [as_path(given, what) for given, what in named if given is not None]


# An option or a part, those it does not go with, why.
APART: tuple[tuple[str, str, str], ...] = (
    (
        "target_model_dir",
        "mmproj all mtp lora no_mtp manifest merge_lora predictor",
        "a draft has no encoders, MTP layers, adapters, predictor or manifest",
    ),
    ("all", "cost_model", "it writes two files, which are not planned together"),
    ("task", "mmproj lora predictor manifest target_model_dir", "a task has weights in an embedding model's own file"),
    ("mtp", "no_mtp predictor manifest", "MTP layers are written alone or left out, without these"),
    ("no_mtp", "mmproj lora predictor manifest", "it says what the model's own file has"),
    (
        "mmproj",
        "merge_lora predictor manifest pre embed_tokenizer",
        "encoders have no vocabulary, adapters, predictor or manifest",
    ),
    ("manifest", "lora merge_lora predictor", "a manifest says nothing of adapters or a predictor"),
    (
        "lora",
        "merge_lora predictor quantize imatrix gptq cost_model",
        "an adapter's own file is written as it is: merge it or write it, not both",
    ),
    ("resume", "merge_lora predictor", "what an interrupted run left does not record them"),
    (
        "sentence_transformers_dense_modules",
        "predictor no_mtp mtp mmproj lora all manifest target_model_dir",
        "dense modules stand in an embedding model's own file",
    ),
)


def check_options(part: Part, options: ConvertOptions, write: WriteOptions, more: Sequence[str] = ()) -> None:
    """Raise OptionError for options that exclude each other. more: names of other arguments that are given."""
    if part not in PARTS:
        raise OptionError(f"there is no part {part!r}", f"it is one of {', '.join(PARTS)}")
    if part == "lora" and options.lora is None:
        raise OptionError("no adapter is named", "give its PEFT folder as `lora`")
    if part != "lora" and options.lora is not None:
        raise OptionError(
            f"`lora` is not written into the part {part}", 'give part="lora", or merge it by `merge_lora`'
        )
    given = {*more, *changed(options), *changed(write)}
    given = (given - {"lora"}) | {part}
    for name, others, why in APART:
        if name in given and (wrong := given.intersection(others.split())):
            raise OptionError(f"{_spelled(name)} does not go with {_spelled(min(wrong))}: {why}", "leave one out")


def _spelled(name: str) -> str:
    return f'part="{name}"' if name in PARTS else f"`{name}`"
