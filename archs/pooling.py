"""How an embedding model makes one vector of a text: sentence-transformers' modules.json beside the checkpoint."""

from __future__ import annotations

from pathlib import Path

from quants.errors import ModelError

from .vocab.files import read_json, read_json_list

# Values of `pooling_type`, by sentence-transformers' words (older files have a flag for each).
POOLING = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3, "mean": 1, "cls": 2,
    "lasttoken": 3,
}  # fmt: skip


def pooling_type(folder: Path) -> int | None:
    """GGUF's `pooling_type`; None where the folder says nothing. Raises ModelError for another way of pooling."""
    modules = read_json_list(folder / "modules.json")
    path = next((module["path"] for module in modules if str(module.get("type", "")).endswith("Pooling")), None)
    if path is None:
        return None
    settings = read_json(folder / path / "config.json")
    words = [key for key, value in settings.items() if value is True] + [settings.get("pooling_mode")]
    found = [POOLING[word] for word in words if word in POOLING]
    if len(found) != 1:
        raise ModelError(f"{folder / path / 'config.json'} pools otherwise than by one of mean, first and last token")
    return found[0]
