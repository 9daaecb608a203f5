"""A config.json with values of wrong types, or that the weights contradict, is refused with key and value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguftools
from tests.archs import checkpoints

from ..command_line import refused, run

Change = Callable[[dict[str, Any]], object]


def refuses(folder: Path, entry: str, change: Change, *words: str) -> None:
    """Assert that a checkpoint with a changed config is not converted, for a reason that has these words."""
    source = folder / entry
    checkpoints.build(entry, source)
    config = json.loads((source / "config.json").read_text())
    change(config)
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(gguftools.GgufToolsError) as error:
        gguftools.convert(source, folder / "out.gguf")
    for word in words:
        assert word in str(error.value), str(error.value)
    assert not list(folder.glob("out*"))


def setting(key: str, value: object) -> Change:
    return lambda config: config.update({key: value})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_attention_heads", "many", "a whole number of at least 1"),
        ("num_attention_heads", 0, "a whole number of at least 1"),
        ("num_key_value_heads", [4], "a whole number of at least 1"),
        ("hidden_size", {}, "a whole number of at least 1"),
        ("vocab_size", -1, "a whole number of at least 1"),
        ("rms_norm_eps", float("nan"), "a number above 0"),
        ("rms_norm_eps", True, "a number above 0"),
        ("head_dim", 1.5, "a whole number of at least 1"),
        ("max_position_embeddings", False, "a whole number of at least 1"),
        ("rope_theta", "10000", "a number"),
        ("rope_scaling", "yarn", "an object"),
        ("sliding_window_pattern", "LLLG", "a whole number of at least 1"),
        ("layer_types", "sliding_attention", "a list"),
        ("layer_types", ["nonsense"], "one of full_attention"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("architectures", "Gemma3TextModel", "a list"),
        ("text_config", "text", "an object"),
    ],
)
def test_values_of_a_wrong_kind(key: str, value: object, expected: str, tmp_path: Path) -> None:
    shown = json.dumps(value).strip("[]{}")
    refuses(tmp_path, "gemma-embedding", setting(key, value), f'config.json: "{key}', shown, expected)


def test_a_value_inside_an_object(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": "2"}
    change = setting("rope_scaling", scaling)
    refuses(tmp_path, "gemma-embedding", change, '"rope_scaling.factor" is "2"', "a number above 0")


def test_a_scaling_without_its_factor(tmp_path: Path) -> None:
    refuses(tmp_path, "eurobert", setting("rope_scaling", {"rope_type": "yarn"}), '"yarn" needs "factor"')


def test_a_list_that_is_not_of_all_layers(tmp_path: Path) -> None:
    refuses(tmp_path, "mellum", setting("layer_types", ["sliding_attention"]), '"layer_types" has 1 entries')


@pytest.mark.parametrize(
    ("key", "value"), [("intermediate_size", 2**31), ("vocab_size", 100), ("moe_intermediate_size", 2**31)]
)
def test_sizes_that_the_weights_do_not_have(key: str, value: int, tmp_path: Path) -> None:
    refuses(tmp_path, "afmoe", setting(key, value), f'"{key}" is {value}')


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("generation_config.json", '{"temperature": "hot"}', '"temperature" is "hot"; a number'),
        ("generation_config.json", '{"top_k": [50]}', '"top_k.*a whole number'),
        ("README.md", "---\nlicense: [1, 2]\n---\n", r"README\.md is no model card"),
        ("README.md", "---\na: [\n---\n", r"README\.md is no model card"),
        ("modules.json", '[{"type": "Pooling", "path": 3}]', '"path" is 3; a string'),
        ("quantize_config.json", '{"bits": "four"}', '"bits" is "four"; a whole number'),
    ],
)
def test_files_beside_it(file: str, content: str, message: str, tmp_path: Path) -> None:
    checkpoints.build("eurobert", tmp_path / "eurobert")
    (tmp_path / "eurobert" / file).write_text(content)
    with pytest.raises(gguftools.GgufToolsError, match=message):
        gguftools.convert(tmp_path / "eurobert", tmp_path / "out.gguf")


@pytest.mark.parametrize(("entry", "count"), [("afmoe", 10**7), ("gemma3n", 2**31), ("eurobert", 10**30)])
def test_a_number_of_layers_that_no_checkpoint_has(entry: str, count: int, tmp_path: Path) -> None:
    source = tmp_path / entry
    checkpoints.build(entry, source)
    config = json.loads((source / "config.json").read_text())
    config.get("text_config", config)["num_hidden_layers"] = count
    (source / "config.json").write_text(json.dumps(config))
    done = run("convert", source, "-o", tmp_path / "out.gguf", cwd=tmp_path, memory=4 << 30)
    refused(done, "num_hidden_layers", "a whole number from 1 to")
    assert not list(tmp_path.glob("out*"))
