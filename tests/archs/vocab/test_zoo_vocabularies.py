"""Every zoo checkpoint's tokenizer becomes the keys that the reference writes."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import Value, ValueType
from archs.vocab import vocabulary
from tests.conftest import ROOT, SHARED

ENTRIES = sorted(path.parent.name for path in SHARED.glob("zoo/*/ref.json"))
LONG = 64  # arrays beyond this are recorded by their hash
KINDS = {
    "spm-llama": ("sentencepiece", "bpe"),
    "spm-phi3": ("sentencepiece",),
    "spm-gemma": ("sentencepiece", "bpe"),
    "spm-t5": ("unigram",),
    "wordpiece": ("wordpiece",),
}
LIKE_LLAMA = ("granite", "granitemoe", "granitemoe-shared", "mistral-nemo-style", "llama3-gqa-rope-tied")
GLM = {"eot_token_id": "<|user|>", "unknown_token_id": "<|endoftext|>"}
EXTRA: dict[str, dict[str, bool | int | str]] = {
    "gemma": {"eot_token_id": 107},
    "gemma-sparse-config": {"eot_token_id": 107},
    "nemotron": {"padding_token_id": 0, "unknown_token_id": 1},
    "internlm2": {"add_space_prefix": True},
    "modernbert": {"add_sep_token": True},
    "glm": GLM,
    "glm4": GLM | {"bos_token_id": "<|endoftext|>"},
    "glm4-moe": GLM | {"bos_token_id": "[gMASK]", "eom_token_id": "<|observation|>"},
}
OURS = {  # what the reference loses, by the tokenizer
    "spm-llama": {"tokenizer.huggingface.prepend_scheme"},
    "spm-phi3": {"tokenizer.huggingface.added_tokens", "tokenizer.huggingface.prepend_scheme"},
    "spm-gemma": {"tokenizer.huggingface.added_tokens"},
    "spm-t5": {"tokenizer.huggingface.added_tokens"},
    "gpt4o": {"tokenizer.huggingface.ignore_merges"},
}

ENDS = {  # and which of the ends of a text, by the entry
    "phimoe": {"tokenizer.huggingface.eos_token_ids"},
    "glm": {"tokenizer.ggml.eom_token_id"},
    "glm4": {"tokenizer.ggml.eom_token_id"},
}


def checkpoint(shared: Path, entry: str, folder: Path) -> tuple[Path, str]:
    """The entry's tokenizer and config files in one folder, and the tokenizer's name."""
    source = shared / "zoo" / entry
    tokenizer = json.loads((source / "spec.json").read_text())["tokenizer"]
    for path in [*(shared / "zoo/tokenizers" / tokenizer).iterdir(), *source.iterdir()]:
        if path.name not in ("encodings.json", "logits.npz", "ref.json", "spec.json", "ref-quant.json"):
            shutil.copyfile(path, folder / path.name)
    return folder, tokenizer


def recorded(value: Value) -> dict[str, Any]:
    """A value in the form of ref.json."""
    if value.type != ValueType.ARRAY:
        return {"type": value.type.name, "value": value.data}
    assert value.element is not None
    kind = {"INT32": "<i4", "FLOAT32": "<f4", "UINT8": "u1"}.get(value.element.name)
    if kind is None:
        raw = b"".join(struct.pack("<Q", len(text.encode())) + text.encode() for text in value.data)
    else:
        raw = np.asarray(value.data, kind).tobytes()
    found = {"type": "ARRAY", "elem": value.element.name, "len": len(value.data)}
    if len(value.data) > LONG:
        return found | {"sha256": hashlib.sha256(raw).hexdigest()}
    return found | {"value": list(value.data)}


@pytest.mark.parametrize("entry", ENTRIES)
def test_keys_are_the_references(entry: str, shared: Path, tmp_path: Path) -> None:
    folder, tokenizer = checkpoint(shared, entry, tmp_path)
    kinds = KINDS.get(tokenizer, ("sentencepiece", "bpe") if entry in LIKE_LLAMA else ("bpe",))
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    found = vocabulary(
        folder, kinds, config, config["vocab_size"], generation_config=generation, extra=EXTRA.get(entry)
    )
    reference = json.loads((shared / "zoo" / entry / "ref.json").read_text())
    if "kv" not in reference.get("f32", {}):
        assert (
            found["tokenizer.ggml.pre"]
            == json.loads((shared / "zoo" / entry / "spec.json").read_text())["tokenizer_pre"]
        )
        return
    wanted = {key: value for key, value in reference["f32"]["kv"].items() if key.startswith("tokenizer.")}
    assert {key: recorded(found.value(key)) for key in found if key in wanted} == wanted
    assert set(found) - set(wanted) == OURS.get(tokenizer, set()) | ENDS.get(entry, set())


def test_austen_has_the_references_keys_in_order(shared: Path) -> None:
    folder = ROOT / "examples" / "austen-4m"
    config = json.loads((folder / "config.json").read_text())
    found = vocabulary(folder, ("sentencepiece", "bpe"), config, config["vocab_size"])
    golden = json.loads((shared / "golden/austen-4m.json").read_text())["convert"]["f16"]["metadata"]
    assert list(found) == [key for key in golden if key.startswith("tokenizer.")]
    for key in found:
        value, wanted = found.value(key), golden[key]
        assert value.type.name + (f"/{value.element.name}" if value.element else "") == wanted["type"]
        if value.type != ValueType.ARRAY:
            assert value.data == wanted["value"]
            continue
        items = np.asarray(value.data).tolist()
        text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
        assert {"length": len(items), "sha256": hashlib.sha256(text.encode()).hexdigest()} == wanted["value"]
