"""How far a GGUF file's predictions on a text are from those of another, usually the one it was quantized from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike
from quants.errors import OptionError

from ..model import Model, opened
from .perplexity import read_text

if TYPE_CHECKING:
    from runtime.divergence import Divergence

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class DivergenceReport:
    """What was measured of which file against which base; the figures are those of `runtime.divergence.Divergence`."""

    base: str
    file: str
    n_ctx: int
    figures: Divergence

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the files and every figure, without those of single predictions."""
        figures = {key: value for key, value in vars(self.figures).items() if key != "predictions"}
        return {"base": self.base, "file": self.file, "n_ctx": self.n_ctx, **figures}


def divergence(
    model: PathLike | Model,
    base: PathLike | Model,
    text: PathLike,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    stride: int = 0,
    threads: int | None = None,
    round_activations: bool = False,
    progress: Progress | None = None,
) -> DivergenceReport:
    """KL divergence of the model's predictions from the base's on the text in the file `text`, in nats, and with it how
    often both favour the same token, by how much the right token's probability changes, and both perplexities.

    n_ctx: tokens of a window; chunks: of how many windows, None for all; stride: > 0 lets windows overlap; all as in
    `perplexity`. threads: None for all processors. round_activations: round the inputs of products as llama.cpp does.
    progress: called after each window with (windows done, windows in all, mean divergence so far).
    Raises FileError, ModelError, VocabularyError, and OptionError for too short a text or for models whose vocabularies
    differ.
    """
    from runtime.divergence import divergence as measure
    from runtime.model import Model as RunningModel
    from runtime.precision import Precision

    files = [opened(each) for each in (model, base)]
    written = read_text(text)
    tokens, of_base = (file.tokenizer.encode(written) for file in files)
    if tokens != of_base:
        both = f"{files[0].path} and {files[1].path}"
        raise OptionError(f"{both} make different tokens of the text; their vocabularies have to be equal")
    precision: Precision = "llama.cpp" if round_activations else "float32"
    models = [RunningModel(file.metadata, file.tensors, threads=threads, precision=precision) for file in files]
    tokenizer = files[0].tokenizer
    figures = measure(
        tokens, models[1].lazy_logits, models[0].lazy_logits, n_ctx, bos=tokenizer.bos if tokenizer.add_bos else None,
        chunks=chunks, stride=stride, progress=progress, threads=models[0].threads,
    )  # fmt: skip
    return DivergenceReport(str(files[1].path), str(files[0].path), n_ctx, figures)
