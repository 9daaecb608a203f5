"""How an embedding model makes one vector of a text: sentence-transformers' modules.json beside the checkpoint."""

from pathlib import Path

from quants.errors import ModelError, VocabularyError

from .small_files import read_json, read_json_object
from .typed_json import Text, read_fields

# Values of `pooling_type`, by sentence-transformers' words (older files have a flag for each).
POOLING = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3, "mean": 1, "cls": 2,
    "lasttoken": 3,
}  # fmt: skip


MODULE = {"type": Text(), "path": Text(form=r"(?!\.\.?$)[^/\\\x00]*")}  # a folder beside modules.json


def pooling_type(folder: Path) -> int | None:
    """GGUF's `pooling_type`; None where the folder says nothing. Raises ModelError for another way of pooling."""
    file = folder / "modules.json"
    listed = read_json(file) if file.is_file() else []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise VocabularyError(f"{file} does not hold a JSON list of objects")
    modules = [read_fields(module, MODULE, str(file)) for module in listed]
    pooling = next((module for module in modules if (module.get("type") or "").endswith("Pooling")), None)
    if pooling is None:
        return None
    path = pooling.get("path") or ""
    config = read_json_object(folder / path / "config.json", optional=True)
    settings = read_fields(config, {"pooling_mode": Text()}, f"{path}/config.json")
    words = [key for key, value in settings.items() if value is True] + [settings.get("pooling_mode")]
    found = [POOLING[word] for word in words if word in POOLING]
    if len(found) != 1:
        raise ModelError(f"{folder / path / 'config.json'} pools otherwise than by one of mean, first and last token")
    return found[0]
