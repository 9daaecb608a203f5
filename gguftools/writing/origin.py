"""Where a model comes from: the files that its values are read from, and how those are laid out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quants import Tensor

from ..io.atomic import InputFiles
from ..io.gguf.reader import DEFAULT_ALIGNMENT
from ..io.locks import State


@dataclass(frozen=True)
class Origin:
    """Where a model comes from; of one made of arrays, nothing but a name for messages and files.

    path: as it was named. files: all that values are read from. states: what these were when they were opened.
    shards: of a GGUF split set, the tensors' names in each. recorded: what decides values beside the files, such as a
    repository's commit or an adapter.
    outtype: of a checkpoint, what its weights are stored as unless asked otherwise (None: no checkpoint). float32:
    parts of tensors' names that a conversion leaves in float32. fixed: the same of encoders, see `archs.encoder`.
    remote: whether it is read over the network. reopen: gives the tensors to another process that it is sent to; None
    where they were changed as they were opened. warnings: what a conversion is to say of the source.
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
    remote: bool = False
    reopen: Callable[[], Mapping[str, Tensor]] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def reads(self) -> InputFiles:
        """What must not be written while this is read."""
        return InputFiles((self.path, *self.files) if self.files else (), self.states)
