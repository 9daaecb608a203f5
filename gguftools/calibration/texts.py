"""Prepare calibration data: windows of the user's texts and of the package's own, some of them held back."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count
from quants.errors import OptionError

from ..measurement.texts import NamedText, default_texts, named_texts, windows_of
from ..models.devices import DeviceOptions, as_device
from ..models.model import Model
from .bounds import DEFAULT_MEMORY

N_CTX = 512
CHUNKS = 128  # windows of each text at most
HELD_BACK = 8  # every so-manieth window is held back


@dataclass(frozen=True)
class Calibration:
    """Choose texts for calibration. own_texts: also the package's, so that a file stays good at other text.

    n_ctx: tokens of a window; chunks: windows of each text at most. memory: bytes that matrices of a layer's inputs may
    take: beyond it, distant columns are handled separately. device: where the model is computed, by name or as options;
    None for the processor by our own kernels.
    """

    texts: tuple[NamedText, ...] = ()
    own_texts: bool = True
    n_ctx: int = N_CTX
    chunks: int = CHUNKS
    memory: int = DEFAULT_MEMORY
    device: str | DeviceOptions | None = None

    def __post_init__(self) -> None:
        """Raise OptionError for invalid sizes, or without any text."""
        as_count(self.n_ctx, "n_ctx", 16)
        as_count(self.chunks, "chunks", 2)
        as_count(self.memory, "memory", 1)
        as_device(self.device)
        if not self.texts and not self.own_texts:
            raise OptionError("there is no text to calibrate on", "name one, or let the package's own be read")

    @property
    def all_texts(self) -> list[NamedText]:
        return [*self.texts, *(default_texts() if self.own_texts else ())]


def as_calibration(given: PathLike | Sequence[PathLike] | Calibration) -> Calibration:
    """Return a Calibration, from one, or from texts as NAME=PATH or PATH. Raises OptionError."""
    if isinstance(given, Calibration):
        return given
    several = [given] if isinstance(given, (str, os.PathLike)) else given
    return Calibration(tuple(named_texts([str(each) for each in several])))


@dataclass(frozen=True)
class Windows:
    """Hold token ids, int64 (windows, n_ctx): to which weights are fitted, and held back to judge by."""

    fitted: NDArray[np.int64]
    held: NDArray[np.int64]

    def digest(self) -> str:
        """Return a digest of the windows."""
        both = (np.asarray(ids, "<i8").tobytes() for ids in (self.fitted, self.held))
        return hashlib.sha256(b"".join(both)).hexdigest()


def calibration_windows(model: Model, calibration: Calibration) -> Windows:
    """Tokenize all texts and cut them into windows. Raises FileError, VocabularyError, OptionError."""
    windows: list[NDArray[np.int64]] = []
    for text in calibration.all_texts:
        own = text not in calibration.texts
        try:
            read = windows_of(model, text, calibration.n_ctx, chunks=calibration.chunks)
        except OptionError:
            if own:  # one of ours is too short for windows of this size
                continue
            raise
        windows += [window.inputs for window in read.windows if len(window.inputs) == calibration.n_ctx]
    if len(windows) < 2:
        raise OptionError(f"the texts have {len(windows)} windows of {calibration.n_ctx} tokens; at least 2 are needed")
    last = min(HELD_BACK, len(windows))
    held = [i for i in range(len(windows)) if i % last == last - 1]
    fitted = [i for i in range(len(windows)) if i % last != last - 1]
    return Windows(np.stack([windows[i] for i in fitted]), np.stack([windows[i] for i in held]))


def split_evenly(ids: NDArray[np.int64], windows: int) -> Sequence[NDArray[np.int64]]:
    """Split windows into groups of up to `windows`."""
    return [ids[i : i + windows] for i in range(0, len(ids), windows)]
