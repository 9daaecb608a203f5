"""Keys of files of strangers hold anything: every command that reads them ends with our own errors or findings."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress

import numpy as np
import pytest

from archs.metadata import Value, ValueType
from gguftools.conversion.convert import convert
from gguftools.conversion.export import export
from gguftools.inspection.audit import audit
from gguftools.inspection.compare import diff
from gguftools.inspection.drafting import can_draft
from gguftools.inspection.validation import validate
from gguftools.metadata.checks import type_mismatches
from gguftools.models.model import open as open_file
from quants.errors import GgufToolsError

from ...conftest import ROOT
from ..tiny_models import edited, metadata_of

ARRAY, INT32, STRING, FLOAT32 = ValueType.ARRAY, ValueType.INT32, ValueType.STRING, ValueType.FLOAT32
STRANGE = [
    Value(0, ValueType.UINT32),
    Value(-1, INT32),
    Value((1 << 64) - 1, ValueType.UINT64),
    Value(float("nan"), FLOAT32),
    Value(1e38, FLOAT32),
    Value("x", STRING),
    Value("", STRING),
    Value(b"\xff\xfe", STRING),
    Value(True, ValueType.BOOL),
    Value(np.zeros(0, np.int32), ARRAY, INT32),
    Value(np.arange(3, dtype=np.int32), ARRAY, INT32),
    Value(["a", b"\xff"], ARRAY, STRING),
    Value([], ARRAY, STRING),
    Value(np.array([np.nan], np.float32), ARRAY, FLOAT32),
    Value([Value(np.arange(1, dtype=np.int32), ARRAY, INT32)], ARRAY, ARRAY),
    Value('{"a": 1}', STRING),
    Value('[{"id": 5}]', STRING),
    Value(np.full(2048, 7, np.int32), ARRAY, INT32),
    None,
]
MORE = (
    "tokenizer.huggingface.added_tokens",
    "tokenizer.huggingface.normalizer",
    "tokenizer.huggingface.json",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.chat_template.x",
    "llama.expert_count",
    "llama.rope.scaling.type",
    "llama.attention.sliding_window",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("typed") / "model.gguf"
    convert(ROOT / "examples" / "austen-4m", path, "f16")
    return path


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 60))])
def test_any_value_under_any_key(seed, model, tmp_path):
    chance = random.Random(seed)
    keys = [*open_file(model).metadata, *MORE]
    changes = {chance.choice(keys): chance.choice(STRANGE) for _ in range(2)}
    known = open_file(model).metadata
    changes = {key: value for key, value in changes.items() if value is not None or key in known}
    try:
        odd = edited(model, tmp_path / "odd.gguf", changes)
    except GgufToolsError:
        return  # not even the header can be written
    for look in (
        lambda: validate(odd, data=False),
        lambda: audit(odd, model),
        lambda: can_draft(model, odd),
        lambda: diff(model, odd).as_dict(),
        lambda: export(odd, tmp_path / "folder"),
    ):
        with suppress(GgufToolsError):
            look()
    shutil.rmtree(tmp_path / "folder", ignore_errors=True)


def test_kinds():
    metadata = metadata_of({"general.architecture": "llama", "llama.block_count": 4, "tokenizer.ggml.bos_token_id": 1})
    assert not list(type_mismatches(metadata, ""))
    metadata.set("llama.block_count", 4, ValueType.INT64)  # another width is no other kind
    assert not list(type_mismatches(metadata, ""))
    metadata.set("llama.block_count", "4", STRING)
    metadata.set("tokenizer.ggml.bos_token_id", 1.0, FLOAT32)
    assert [key for key, _ in type_mismatches(metadata, "")] == ["llama.block_count", "tokenizer.ggml.bos_token_id"]
    assert [key for key, _ in type_mismatches(metadata, "tokenizer.")] == ["tokenizer.ggml.bos_token_id"]
