"""Files whose keys and shapes disagree are refused before anything runs, with the wrong key or tensor."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.metadata import Value, ValueType
from gguftools.inspection.validation import validate
from quants.errors import ModelError
from tests.archs import checkpoints
from tests.gguftools.tiny_models import edited

from ..command_line import EXAMPLE, TEXT, refused, run, typed

NAN = float("nan")
MEMORY = 3 << 30  # of address space, most of which is never touched
SECONDS = 200  # with a cold start on a busy machine; done in two


def listed(*items: Any, element: ValueType = ValueType.UINT32) -> Value:
    return Value(list(items), ValueType.ARRAY, element)


def text(data: str) -> Value:
    return Value(data, ValueType.STRING)


# Keys of the example (llama: 4 layers, width 256) -> what the answer names.
KEYS: dict[str, Any] = {
    "embedding_length": 128,
    "attention.head_count": 3,
    "attention.head_count_kv": 3,
    "rope.dimension_count": 63,
    "attention.key_length": 7,
    "attention.value_length": 9,
    "attention.layer_norm_rms_epsilon": NAN,
    "rope.freq_base": NAN,
    "block_count": text("4"),
    "feed_forward_length": 2**31,
    "attention.scale": listed(1.0, 2.0, element=ValueType.FLOAT32),
    "attention.sliding_window": text("all"),
    "rope.scaling.type": text("yarnn"),
    "final_logit_softcapping": NAN,
    "embedding_scale": float("inf"),
    "attention.clamp_kqv": -1.0,
}
# Tensors of the example and what becomes of their shapes.
SHAPES: dict[str, Any] = {
    "blk.0.attn_q.weight": (255, 256),
    "blk.1.attn_k.weight": (256, 128),
    "blk.1.attn_output.weight": (256, 255),
    "blk.2.ffn_up.weight": (100, 256),
    "blk.2.ffn_down.weight": (256, 17),
    "blk.3.attn_norm.weight": (255,),
    "blk.3.ffn_norm.weight": (1, 256),
    "output_norm.weight": (7,),
    "token_embd.weight": (2048, 255),
    "output.weight": (2047, 256),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    gguftools.convert(EXAMPLE, path, "f16")
    gguftools.load(path).logits([1, 2, 3])
    return path


def answer(path: Path) -> str:
    """What comes of running the file, in a process of its own: kernels that are misled may end it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
        said = "it crashes"
        try:
            loaded = gguftools.load(path)
            said = f"it runs: {loaded.logits([1, 2, 3], [0, 1] if loaded.sides else []).shape}"
        except ModelError as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        said = answers.read().decode()
    return said if os.waitpid(child, 0)[1] == 0 else "it crashes"


def refuses(path: Path, where: str) -> None:
    said = answer(path)
    assert said.startswith("refused: "), said
    assert where in said
    assert not validate(path, data=False).ok


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_shapes_or_sense_contradict(key: str, model: Path, tmp_path: Path) -> None:
    said = {"attention.value_length": "attn_v", "embedding_length": "weight"}
    said |= {"feed_forward_length": "ffn_"}
    refuses(edited(model, tmp_path / "lie.gguf", {f"llama.{key}": KEYS[key]}), said.get(key, key))


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_keys_contradict(name: str, model: Path, tmp_path: Path) -> None:
    values = np.full(SHAPES[name], 0.01, np.float32)
    refuses(edited(model, tmp_path / "lie.gguf", {}, {name: values}), name)


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.2.attn_norm.weight", "blk.1.attn_output.weight"])
def test_tensors_without_which_it_would_run_otherwise(name: str, model: Path, tmp_path: Path) -> None:
    refuses(edited(model, tmp_path / "lie.gguf", {}, {name: None}), name)


def test_fewer_layers_than_there_are(model: Path, tmp_path: Path) -> None:
    refuses(edited(model, tmp_path / "lie.gguf", {"llama.block_count": 3}), "blk.3")


@pytest.mark.parametrize("command", ["perplexity", "imatrix"])
def test_commands(command: str, model: Path, tmp_path: Path) -> None:
    lie = edited(model, tmp_path / "lie.gguf", {"llama.attention.head_count_kv": 3})
    output = ("-o", tmp_path / "out.gguf") if command == "imatrix" else ()
    done = run(command, lie, "-f", TEXT, "--chunks", "2", *output, cwd=tmp_path)
    assert "head_count_kv" in refused(done)
    assert not (tmp_path / "out.gguf").exists()


# Other insides: entries of tests/data/families, a key of theirs, what is named.
OTHERS: list[tuple[str, str, Any, str]] = [
    ("glm4-moe-lite", "attention.kv_lora_rank", 7, "attn_kv_a"),
    ("glm4-moe-lite", "rope.dimension_count", 4096, "rope.dimension_count"),
    ("glm4-moe-lite", "expert_group_count", 3, "expert_group_count"),
    ("llama4", "expert_used_count", 99, "expert_used_count"),
    ("nemotron-h-moe", "ssm.group_count", 3, "ssm"),
    ("nemotron-h-moe", "ssm.state_size", 5, "ssm"),
    ("qwen3-next", "ssm.time_step_rank", 3, "ssm"),
    ("qwen3-next", "ssm.inner_size", 3, "ssm"),
    ("gemma3n", "altup.active_idx", 9, "altup.active_idx"),
    ("gemma4-e", "attention.key_length_swa", 6, "attention.key_length"),
    ("umt5", "decoder_block_count", 1, "dec.blk"),
    ("umt5", "attention.head_count", 3, "attn_"),
]


@pytest.mark.parametrize(("entry", "key", "value", "where"), OTHERS)
def test_other_insides(entry: str, key: str, value: Any, where: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "model.gguf", "f32")
    name = gguftools.open(tmp_path / "model.gguf").metadata["general.architecture"]
    path = edited(tmp_path / "model.gguf", tmp_path / "lie.gguf", {f"{name}.{key}": value})
    done = typed("validate", path)
    assert done.returncode == 1
    assert "its metadata makes no model" not in done.stdout + done.stderr
    said = answer(path)
    assert said.startswith("refused: "), said
    assert where in said


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("block_count", "validate"),
        ("block_count", "export"),
        ("block_count", "perplexity"),
        ("rope.dimension_count", "perplexity"),
        ("rope.dimension_count", "validate"),
    ],
)
def test_one_integer(key: str, command: str, model: Path, tmp_path: Path) -> None:
    lie = edited(model, tmp_path / "lie.gguf", {f"llama.{key}": 1 << 31})
    more = {"export": ("-o", "hf"), "perplexity": ("-f", TEXT, "--chunks", "2"), "validate": ()}[command]
    done = run(command, lie, *more, cwd=tmp_path, memory=MEMORY, timeout=SECONDS)
    if command == "validate":
        assert done.returncode == 1
        assert key in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert key in refused(done)
    assert not (tmp_path / "hf").exists()
