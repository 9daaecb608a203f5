"""Describe where a model comes from: its files, and their layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quants import Tensor

from ..io.atomic import InputFiles
from ..io.gguf.reader import DEFAULT_ALIGNMENT
from ..io.locks import State


@dataclass(frozen=True)
class Origin:
    """Describe where a model comes from; for one made of arrays, only a name for messages and files.

    path: as the user named it. files: all files that values are read from. states: of all files that were read, before
    they were first read. shards: of a GGUF split set, the tensors' names in each. recorded: what else decides values,
    such as a repository's commit or an adapter. outtype: of a checkpoint, the default type of a conversion (None: no
    checkpoint). float32: parts of names of tensors that a conversion leaves in float32. fixed: the same of encoders,
    see `archs.encoder`. candidates: names of the tensors whose type the output's decides, all others keep theirs; None
    where `float32` and `fixed` tell. remote: it is read over the network. reopen: opens the tensors in another process;
    None if they were changed after opening. warnings: of a conversion about the source.
    """

    path: Path = Path("model.gguf")
    files: tuple[Path, ...] = ()
    states: Mapping[Path, State] = field(default_factory=dict)
    shards: tuple[tuple[str, ...], ...] = ()
    magic: bytes = b"GGUF"
    alignment: int = DEFAULT_ALIGNMENT
    recorded: tuple[tuple[str, ...], ...] = ()
    outtype: str | None = None
    float32: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    candidates: frozenset[str] | None = None
    remote: bool = False
    reopen: Callable[[], Mapping[str, Tensor]] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def reads(self) -> InputFiles:
        """Return the files that must not be written while the model is read."""
        return InputFiles((self.path, *self.files) if self.files else (), self.states)
