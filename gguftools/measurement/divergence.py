"""How far a GGUF file's predictions on a text are from those of another, usually the one it was quantized from."""

from dataclasses import dataclass
from typing import Any

from quants.arguments import PathLike
from quants.errors import OptionError
from runtime.divergence import Divergence
from runtime.divergence import divergence as measure

from ..model import Model, opened
from .perplexity import Progress, tokens_of


@dataclass(frozen=True)
class DivergenceReport(Divergence):
    """What was measured of which file against which base."""

    base: str
    file: str
    n_ctx: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the files and every figure, without those of single predictions."""
        first = {"base": self.base, "file": self.file, "n_ctx": self.n_ctx}
        return first | {key: value for key, value in vars(self).items() if key != "predictions"}


def divergence(
    model: PathLike | Model, base: PathLike | Model, text: PathLike, *,
    n_ctx: int = 512, chunks: int | None = None, stride: int = 0, threads: int | None = None,
    round_activations: bool = False, progress: Progress | None = None,
) -> DivergenceReport:  # fmt: skip
    """KL divergence of the model's predictions from the base's on the text in the file `text`, in nats, and with it how
    often both favour the same token, by how much the right token's probability changes, and both perplexities.

    n_ctx: tokens of a window; chunks: of how many windows, None for all; stride: > 0 lets windows overlap; all as in
    `perplexity`. threads: None for all processors. round_activations: round the inputs of products as llama.cpp does.
    progress: called after each window with (windows done, windows in all, mean divergence so far).
    Raises FileError, ModelError, VocabularyError, and OptionError for too short a text or for models whose vocabularies
    differ.
    """
    from runtime.model import Model as RunningModel
    from runtime.precision import Precision

    files = [opened(each) for each in (model, base)]
    (tokens, bos), (of_base, _) = (tokens_of(file, text) for file in files)
    if tokens != of_base:
        both = f"{files[0].path} and {files[1].path}"
        raise OptionError(f"{both} make different tokens of the text; their vocabularies have to be equal")
    precision: Precision = "reference" if round_activations else "float32"
    models = [RunningModel(file.metadata, file.tensors, threads=threads, precision=precision) for file in files]
    figures = measure(
        tokens, models[1].lazy_logits, models[0].lazy_logits, n_ctx, bos=bos, chunks=chunks, stride=stride,
        progress=progress, threads=models[0].threads,
    )  # fmt: skip
    return DivergenceReport(**vars(figures), base=str(files[1].path), file=str(files[0].path), n_ctx=n_ctx)
