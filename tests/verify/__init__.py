"""Random comparison with transformers: `make verify` (needs the extra `verify`)."""

from __future__ import annotations

import json
from pathlib import Path

from archs.registry import of_config


def attention(folder: Path) -> str:
    """Which of transformers' attentions computes what the checkpoint's model does."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return "eager" if of_config(config).eager_attention else "sdpa"
