"""Compute embeddings of texts, and write them to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike

from ..io.atomic import NOTHING
from ..writing.vectors import check_output, write_vectors
from .devices import DeviceOptions, name_of_device
from .model import Model, opened_gguf, path_of
from .running import running_model

if TYPE_CHECKING:
    from runtime.evaluation.pooling import Embeddings, Text


@dataclass(frozen=True)
class EmbeddingReport:
    """Vectors of texts, `embeddings.vectors` (float32), and the file that they were written to.

    device: the name of the device that computed them, "" for the processor.
    """

    file: Path
    embeddings: Embeddings
    inputs: tuple[Path, ...]
    output: str | None = None
    device: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what is unusual, a line each."""
        return self.embeddings.warnings

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; without the vectors if they were written to a file."""
        about = {"file": str(self.file), "output": self.output, "device": self.device}
        return about | self.embeddings.as_dict(vectors=self.output is None)

    def save(self, output: PathLike, *, overwrite: bool = False, reads: Iterable[PathLike] = ()) -> EmbeddingReport:
        """Write the vectors to a .npy or .json file, and return the report that names it.

        reads: files that must not be replaced, besides the model's. Raises OptionError, FileError.
        """
        inputs = NOTHING.also([*self.inputs, *reads])
        write_vectors(self.embeddings, check_output(output, inputs, overwrite), inputs, overwrite)
        return replace(self, output=str(output))


def embed(
    source: PathLike | Model,
    texts: str | Sequence[Text],
    *,
    pooling: str | None = None,
    normalize: int | None = None,
    truncate: bool = False,
    threads: int | None = None,
    device: str | DeviceOptions | None = None,
    progress: Callable[[int, int, Any], None] | None = None,
) -> EmbeddingReport:
    """Compute embeddings of texts, or scores of a reranker: `embed(file, ["a text"]).embeddings.vectors`.

    source: a GGUF file, any shard of a split set, its URL, or a Model. texts, pooling, normalize, truncate, threads,
    device, progress: as of `Model.embed`. Raises as that does, and FileError.
    """
    model = opened_gguf(source)
    embeddings = model.embed(
        texts,
        pooling=pooling,
        normalize=normalize,
        truncate=truncate,
        threads=threads,
        device=device,
        progress=progress,
    )
    where = name_of_device(running_model(model, threads, device))
    return EmbeddingReport(path_of(source), embeddings, model.files, device=where)
