"""Architectures are found by class and by name, in this package and in others'."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archs.registry import architectures, by_gguf_name, by_hf_class, classes, of_config, of_file
from quants.errors import ModelError

from ..conftest import ROOT

PLUGIN = """
from archs.families.llama import LLAMA

ARCH = LLAMA.derive(name="llamalike", hf_classes=("LlamalikeForCausalLM",))
"""


def test_architectures_of_one_gguf_name_run_alike():
    for architecture in architectures():
        name, causal = architecture.name, architecture.block.causal
        if architecture.of_keys:  # files with such keys run otherwise, and are told by them
            continue
        assert of_file(name, {f"{name}.attention.causal": causal}).block == architecture.block, architecture.hf_classes
        assert not causal or by_gguf_name(name) == of_file(name, {})


def test_no_class_is_claimed_twice():
    claimed = [architecture for architecture in architectures() if not architecture.by_variant]
    classes = [hf_class for architecture in claimed for hf_class in architecture.hf_classes]
    assert len(classes) == len(set(classes))


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ModelError, match="MixtralForCasualLM") as caught:
        by_hf_class(["MixtralForCasualLM"])
    assert "MixtralForCausalLM" in (caught.value.hint or "")
    with pytest.raises(ModelError, match="'gema3'") as caught:
        by_gguf_name("gema3")
    assert "gemma3" in (caught.value.hint or "")


def test_the_first_known_of_several_classes_counts():
    assert by_hf_class(["NobodysForCausalLM", "OPTForCausalLM"]).name == "opt"


@pytest.mark.parametrize(("kind", "name"), [("qwen2_moe", "qwen2moe"), ("gemma3_text", "gemma3"), ("gpt2", "gpt2")])
def test_without_classes_the_model_type_counts(kind: str, name: str) -> None:
    assert of_config({"model_type": kind}).name == name
    with pytest.raises(ModelError, match="model class NobodysForCausalLM is not supported"):
        of_config({"model_type": kind, "architectures": ["NobodysForCausalLM"]})


def test_another_package_brings_an_architecture(tmp_path: Path):
    """An installed distribution: a module, and metadata with an entry point that names it."""
    (tmp_path / "llamalike.py").write_text(PLUGIN)
    metadata = tmp_path / "llamalike-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: llamalike\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gguftools.architectures]\nllamalike = llamalike\n")
    script = "from archs.registry import by_hf_class; print(by_hf_class(['LlamalikeForCausalLM']).name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "llamalike\n", done.stderr


def test_the_changelog_says_how_many_classes_there_are() -> None:
    assert f"checkpoints of {len(classes())} model classes" in (ROOT / "CHANGELOG.md").read_text()
