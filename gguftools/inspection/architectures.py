"""The architectures that are converted and run."""

from dataclasses import asdict, dataclass
from typing import Any

from archs.registry import architectures as registered


@dataclass(frozen=True)
class ArchitectureInfo:
    """An architecture by its GGUF name, the Hugging Face classes it takes, the kinds of vocabulary tried in turn."""

    name: str
    hf_classes: tuple[str, ...]
    vocabularies: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def architectures() -> tuple[ArchitectureInfo, ...]:
    """All architectures, those of other packages too; each is converted to GGUF and run. Several may share a name."""
    return tuple(ArchitectureInfo(each.name, each.hf_classes, each.vocab) for each in registered())
