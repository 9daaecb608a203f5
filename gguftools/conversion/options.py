"""Options of a conversion: one object, made once and passed on, and the check of combinations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from archs.diffusion.parts import PARTS as IMAGE_PARTS
from archs.diffusion.spec import READERS, Reader
from quants.arguments import PathLike, as_path
from quants.errors import OptionError

from ..quantization.options import QuantizeOptions
from ..writing.options import WriteOptions, changed, shown

Part = Literal[
    "model",
    "mmproj",
    "mtp",
    "lora",
    "all",
    "vae",
    "text-encoders",
    "clip-l",
    "clip-g",
    "clip-h",
    "t5xxl",
    "llm",
    "clip-vision",
]
PARTS: tuple[Part, ...] = ("model", "mmproj", "mtp", "lora", "all")


@dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion besides the type of weights.

    pre: the pre-tokenizer's GGUF name, if the tokenizer's structure does not tell. embed_tokenizer: also keep
    tokenizer.json in the file. check_tokenizer: compare the file's vocabulary with the checkpoint's own tokenizer
    on some hundred texts; a difference is a warning. merge_lora: PEFT folders to add to the weights, of an image or
    video model LoRA files, each with a scale if it is not 1. lora: with part="lora", the PEFT folder of the adapter
    to write for the base model. predictor: folder of the predictor for a PowerInfer file. no_mtp: leave out the MTP
    layers, which are in the model's file otherwise. sentence_transformers_dense_modules: also write the matrices
    that EmbeddingGemma multiplies pooled states with. target_model_dir: the folder of the target model of a draft;
    its config.json and tokenizer are read. task: write the weights of this task, of a checkpoint with weights for
    several (Jina v3). fallback: with the outtype "exact", the type of weights that no blocks hold exactly: F32,
    F16, BF16, Q8_0 or "auto". rounded_grids: with it, also use blocks that give the values of a BF16 or F16 weight
    after rounding to that type. reader: of an image or video model, the program whose layout is written: "comfyui"
    (also rearranges convolutions of U-Nets, so that recipes take them), "sdcpp" or "diffusers" (keeps 5-D tensors);
    None for one that all but diffusers read. quantize: more options of `quantize`.
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
    reader: Reader | None = None
    quantize: QuantizeOptions | None = None

    def __repr__(self) -> str:
        return shown(self)

    def folders(self) -> list[PathLike]:
        """Return the folders that are read besides the checkpoint. Raises OptionError unless they are paths."""
        named = [(getattr(self, each), each) for each in ("lora", "predictor", "target_model_dir")]
        adapters = [each[0] if isinstance(each, tuple) else each for each in self.merge_lora]
        named += [(each, "merge_lora") for each in adapters]
        return [as_path(given, what) for given, what in named if given is not None]


# A part or an option, those that it excludes, why. The command line has the same rules.
EXCLUSIONS: tuple[tuple[str, str, str], ...] = (
    (
        "lora",
        "merge_lora predictor imatrix gptq quantize cost_model pre embed_tokenizer fallback rounded_grids manifest",
        'part="lora" writes only the adapter',
    ),
    ("mmproj", "merge_lora predictor imatrix pre embed_tokenizer manifest", 'part="mmproj" writes only the encoder'),
    ("mtp", "no_mtp predictor manifest", 'part="mtp" writes only the MTP layers'),
    ("all", "cost_model", 'part="all" writes several files, and `cost_model` plans one'),
    ("no_mtp", "mmproj lora predictor manifest", "`no_mtp` applies only to the text model's own file"),
    ("target_model_dir", "lora merge_lora predictor mmproj all mtp no_mtp manifest", "a draft model has none of these"),
    (
        "sentence_transformers_dense_modules",
        "lora predictor mmproj all mtp no_mtp manifest target_model_dir",
        "Dense modules belong to an embedding model's own file",
    ),
    (
        "task",
        "lora predictor mmproj manifest target_model_dir",
        "`task` chooses weights of an embedding model's own file",
    ),
    ("cost_model", "merge_lora predictor", "the cost of these is not estimated"),
    ("cost_model", "manifest resume", "`cost_model` writes nothing"),
    ("manifest", "merge_lora predictor", "a manifest cannot describe it"),
    ("resume", "lora", "an adapter is written at once"),
    ("resume", "merge_lora predictor", "the interrupted run does not record it"),
)


def check_options(part: Part, options: ConvertOptions, write: WriteOptions, more: Sequence[str] = ()) -> None:
    """Raise OptionError for options that exclude each other. more: names of what else is given."""
    if part not in PARTS and part not in IMAGE_PARTS:
        raise OptionError(f"there is no part {part!r}", f"it is one of {', '.join((*PARTS, *IMAGE_PARTS))}")
    if options.reader is not None and options.reader not in READERS:
        raise OptionError(f"there is no reader {options.reader!r}", f"it is one of {', '.join(READERS)}")
    if part == "lora" and options.lora is None:
        raise OptionError("no adapter is named", "give its PEFT folder as `lora`")
    if part != "lora" and options.lora is not None:
        raise OptionError(
            f"`lora` is not written into the part {part}", 'give part="lora", or merge it by `merge_lora`'
        )
    given = {*more, *changed(options), *changed(write)}
    given = (given - {"lora"}) | {part}
    for name, others, why in EXCLUSIONS:
        if name in given and (wrong := given.intersection(others.split())):
            raise OptionError(f"{_spelled(name)} cannot be combined with {_spelled(min(wrong))}", why)


# Of ConvertOptions, and of WriteOptions: what an image or video model has no use for.
FOR_TEXT = (
    "pre embed_tokenizer predictor no_mtp sentence_transformers_dense_modules target_model_dir task rounded_grids "
    "fallback"
)


def check_image_options(part: str, options: ConvertOptions, write: WriteOptions) -> None:
    """Raise OptionError for options that have no effect on an image or video model."""
    if part in ("mmproj", "mtp"):
        raise OptionError(f"an image or video model has no {_spelled(part)}", 'part="all" writes all parts')
    if options.lora is not None:
        raise OptionError("an adapter of an image or video model has no file of its own", "merge it by `merge_lora`")
    if wrong := [name for name in changed(options) if name in FOR_TEXT.split()]:
        raise OptionError(f"`{wrong[0]}` has no effect on an image or video model", "leave it out")
    if options.reader is not None and write.manifest:
        raise OptionError("a manifest cannot describe `reader`", "leave one out")


def check_text_options(part: str, options: ConvertOptions, source: object) -> None:
    """Raise OptionError for options that only image and video models have a use for."""
    if part in IMAGE_PARTS:
        raise OptionError(
            f"{source} is no image or video model: it has no part {part}", f"there are {', '.join(PARTS)}"
        )
    if options.reader is not None:
        raise OptionError("`reader` has no effect on a text model", "leave it out")


def _spelled(name: str) -> str:
    return f'part="{name}"' if name in PARTS else f"`{name}`"
