"""The table of config keys is complete: every key that any code of `archs` reads is in it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import archs
from archs.config import normalized, typed
from archs.hparams.config_keys import KEYS, ROPE_BY_LAYERS, TEXT_PARTS, THINKER
from archs.hparams.encoder_keys import PARTS, PREPROCESSOR
from archs.plans.mmproj import all_encoders
from archs.registry import architectures, drafts, of_config
from quants.errors import ModelError
from tests.archs import checkpoints

CONFIGS = ("config", "full", "raw", "read")
BY_LOOKUP = ("lookup", "required", "interleave_rope", "ungroup", "in_groups", "scaled", "head_rows", "columns")
# where `config` is another file's
OTHERS_CONFIG = ("lora.py", "restore.py", "ranks.py", "files.py", "chat.py", "checked.py")
INTERNAL = {"full_base", "rope_scaling_local", "partial_rotary_factor_local", "heads", "kv_heads"}
OF_ENCODERS = {"shapes", "vision", "audio", "text", "preprocessor", "tokens", "folder"}  # by archs.plans.mmproj


def texts(nodes: list[ast.expr]) -> Iterator[str]:
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def keys_read(tree: ast.AST) -> Iterator[str]:
    """The keys of config["k"], config.get("k"), lookup(config, "a|b") and of words that look keys up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in CONFIGS:
            yield from texts([node.slice] if isinstance(node.ctx, ast.Load) else [])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if isinstance(node.func.value, ast.Name) and node.func.value.id in CONFIGS:
                yield from texts(node.args[:1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_LOOKUP:
            for text in texts(node.args):
                yield from (
                    key
                    for keys in text.split("+")
                    for key in keys.split("|")
                    if len(key) > 3 and not key.endswith(".weight")
                )  # of which wrappers take a width


def keys_declared() -> Iterator[str]:
    for architecture in architectures():
        sources = [source for source in architecture.metadata.values() if isinstance(source, str)]
        for source in (*sources, architecture.activation):
            yield from source.split("|")
        yield from (*architecture.defaults, *architecture.refused, *architecture.keys)


def has_config(entry: str) -> bool:
    return (checkpoints.FAMILIES / entry / "config.json").is_file()


def test_every_key_that_is_read_has_a_type() -> None:
    found = set(keys_declared()) - {""}
    for path in Path(archs.__file__).parent.rglob("*.py"):
        if path.name not in OTHERS_CONFIG:
            found |= set(keys_read(ast.parse(path.read_text(encoding="utf-8"))))
    tops = {key.partition(".")[0] for key in found}
    of_drafts = {key for each in drafts() for key in each.keys}  # which have nothing to say to models
    assert tops - KEYS.keys() - PARTS.keys() - set(TEXT_PARTS) - INTERNAL - OF_ENCODERS - of_drafts == set()
    assert len(tops) > 200


def test_keys_of_encoders_have_a_type() -> None:
    found = {key for encoder in all_encoders() for part in encoder.defaults.values() for key in part}
    for encoder in all_encoders():
        paths = [path for source in encoder.metadata.values() if isinstance(source, str) for path in source.split("|")]
        found |= {path.rpartition(".")[2] for path in paths}
    assert found - KEYS.keys() - PARTS.keys() - PREPROCESSOR.keys() - OF_ENCODERS == set()
    assert len(found) > 10


def test_keys_inside_objects_have_a_type() -> None:
    tree = ast.parse((Path(archs.__file__).parent / "rope.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    found = {text for node in calls if node.func.id == "rope_scaling" for text in texts(node.args[1:])}  # type: ignore[attr-defined]
    assert {"factor", "rope_type"} <= found <= ROPE_BY_LAYERS.keys()


@pytest.mark.parametrize("entry", [*filter(has_config, checkpoints.entries())])
def test_configs_are_read_as_they_are(entry: str) -> None:
    raw = json.loads((checkpoints.FAMILIES / entry / "config.json").read_text(encoding="utf-8"))
    architecture = of_config(raw)
    read = typed(raw, architecture.keys)
    part = next((raw[key] for key in TEXT_PARTS if key in raw and THINKER not in raw), {})
    assert {key: read.get(key) for key in part if key != "architectures"} == {
        key: value for key, value in part.items() if key != "architectures"
    }
    assert normalized(raw, architecture.defaults, architecture.keys).keys() >= read.keys() - {"rope_parameters"}


def test_what_is_absent_is_named_with_its_alternatives() -> None:
    config = normalized({"n_embd": None}, {})
    with pytest.raises(ModelError, match=r'config\.json has no "hidden_size"'):
        config["hidden_size"]
    with pytest.raises(ModelError, match=r'config\.json has no "n_embd"'):
        config["n_embd"]
