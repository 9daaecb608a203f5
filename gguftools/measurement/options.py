"""Options of the measurements, one object each."""

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quants.arguments import PathLike, as_count

from ..models.devices import DeviceOptions
from .tasks.drawing import SEED

if TYPE_CHECKING:
    from ..models.model import Model

SAVE_EVERY = 10  # windows


@dataclass(frozen=True)
class PerplexityOptions:
    """How `perplexity` measures.

    stride: > 0 for overlapping windows. precision: "float32", "exact" (no product in integers) or "llama.cpp": inputs
    of products rounded as llama.cpp rounds them (to 8 bits for quantized weights), for figures that compare with its
    own. sparse: compute only the neurons that a PowerInfer file's predictor selects; compare: before that all of them,
    too. profile: time each type of operation. device: where the model is computed, by name or as options; None for the
    processor by our own kernels.
    """

    stride: int = 0
    precision: str = "float32"
    sparse: bool = False
    compare: bool = True
    profile: bool = False
    device: str | DeviceOptions | None = None


@dataclass(frozen=True)
class DivergenceOptions:
    """How `divergence` measures, and what it writes.

    chat: texts are conversations (JSONL), of which only answers are scored. precision: as in `PerplexityOptions`.
    base_model: a file with the output matrix of a saved base, if it is not found. save_base: write the base's
    predictions there: in our small format if the name ends in .gguf (see `measurement.bases`), else in llama.cpp's.
    top_k: of our format, store only so many top tokens. with_output: of our format, store the output matrix, too.
    overwrite: replace an existing file. record: write each window's figures to this file, and resume from it (and the
    saved base) after an interruption; it is removed at the end. keep_record: leave it, for a caller that has yet to
    write the report. executor: its workers, other processes, run the windows, with one thread each unless threads are
    given; figures are the same to the last bit. device: as in `PerplexityOptions`.
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
    device: str | DeviceOptions | None = None


@dataclass(frozen=True)
class EvaluationOptions:
    """Which tasks `evaluate` draws, and how it computes them.

    tasks: number of tasks drawn from each benchmark with `seed`; None for 400 of HellaSwag and all of the others.
    precision, device: as in `PerplexityOptions`. record, keep_record: as in `DivergenceOptions`, for tasks' scores.
    """

    tasks: int | None = None
    seed: int = SEED
    precision: str = "float32"
    record: PathLike | None = None
    keep_record: bool = False
    device: str | DeviceOptions | None = None


@dataclass(frozen=True)
class ImatrixOptions:
    """What `imatrix` reads and measures, and how it resumes after an interruption.

    skip_chunks: windows of each text to skip before the first `chunks` are read. parse_special: special tokens spelled
    in a text become these tokens. with_output: also measure the output and embedding matrices, whose importance recipes
    don't need. nextn: also the MTP layer, which the model runs without. precision: as in `PerplexityOptions`.
    save_every: with an output, save the sums next to it after so many windows, 0 for never. resume: resume an
    interrupted run of the same model, texts and options. overwrite: replace an existing output. executor: as in
    `DivergenceOptions`. device: as in `PerplexityOptions`.
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
    device: str | DeviceOptions | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a negative number."""
        as_count(self.skip_chunks, "skip_chunks", 0)
        as_count(self.save_every, "save_every", 0)
