"""The journal of an in-place edit."""

from pathlib import Path


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")
