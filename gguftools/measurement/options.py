"""Options of the measurements: one object each, built by the caller and passed on as it is."""

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quants.arguments import PathLike

from .tasks.drawing import SEED

if TYPE_CHECKING:
    from ..models.model import Model

SAVE_EVERY = 10  # windows


@dataclass(frozen=True)
class PerplexityOptions:
    """How `perplexity` measures.

    stride: > 0 lets windows overlap. precision: "float32", "exact" (no product in integers) or "llama.cpp": the inputs
    of products rounded as llama.cpp does (to 8 bits for quantized weights), for figures to compare with its own.
    sparse: compute only the neurons that a PowerInfer file's predictor marks; compare: before that all of them, too.
    profile: time each kind of work.
    """

    stride: int = 0
    precision: str = "float32"
    sparse: bool = False
    compare: bool = True
    profile: bool = False


@dataclass(frozen=True)
class DivergenceOptions:
    """How `divergence` measures, and what it writes.

    chat: texts are conversations, JSONL, whose answers alone are scored. precision: as in `PerplexityOptions`.
    base_model: what has the output matrix of a saved base, where it is not found.
    save_base: write the base's predictions there: as our own small base where the name ends in .gguf (see `bases`;
    top_k: its likeliest tokens alone; with_output: and the output matrix), else in llama.cpp's form; overwrite: replace
    a file that is there.
    record: note each window's figures in this file, and go on from it (with the base that is saved, too) where an
    earlier run was killed; it is removed in the end, or stays with keep_record, for a caller that has yet to write the
    report.
    executor: its workers, other processes, run the windows, with so many threads each, one if not given; the figures
    are the same to the last bit.
    """

    chat: bool = False
    precision: str = "float32"
    base_model: "PathLike | Model | None" = None
    save_base: PathLike | None = None
    top_k: int | None = None
    with_output: bool = False
    record: PathLike | None = None
    keep_record: bool = False
    overwrite: bool = False
    executor: Executor | None = None


@dataclass(frozen=True)
class EvaluationOptions:
    """Which tasks `evaluate` draws, and how it computes them.

    tasks: of each test so many are drawn with `seed`; None for 400 of HellaSwag and all of the others. precision: as in
    `PerplexityOptions`. record, keep_record: as in `DivergenceOptions`, of tasks' scores.
    """

    tasks: int | None = None
    seed: int = SEED
    precision: str = "float32"
    record: PathLike | None = None
    keep_record: bool = False


@dataclass(frozen=True)
class ImatrixOptions:
    """What `imatrix` reads and measures, and how it goes on after an interruption.

    skip_chunks: windows of each text that are left out, before the first `chunks` are read. parse_special: special
    tokens that a text spells become these tokens. with_output: also measure the weights of the head, which recipes
    don't ask importance for. nextn: also the layer that predicts a token further, which the model runs without.
    precision: as in `PerplexityOptions`. save_every: with an output, keep the sums next to it after so many windows, 0
    for never; resume: go on from those that an interrupted run of the same model, texts and options left. overwrite:
    replace an output that exists. executor: as in `DivergenceOptions`.
    """

    skip_chunks: int = 0
    parse_special: bool = False
    with_output: bool = False
    nextn: bool = False
    precision: str = "float32"
    save_every: int = SAVE_EVERY
    resume: bool = False
    overwrite: bool = False
    executor: Executor | None = None
