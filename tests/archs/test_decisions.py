"""Models that decide: prompts, and adapters that make such a model of another, as llama.cpp's converter has them."""

import json
import shutil
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from archs import decisions
from archs.metadata import Metadata
from gguftools.conversion.options import ConvertOptions
from quants.errors import FileError, ModelError, OptionError
from runtime.evaluation.joint_decision import OPTION, QUESTION, SEPARATOR, joint_scores, spans_of
from runtime.evaluation.option_scores import option_scores
from tests.archs import checkpoints
from tests.archs.test_more_families import described
from tests.conftest import DATA

RECORDED = DATA / "decisions"
WEIGHTS = {
    "layers.0.mlp.up_proj": (48, 32),
    "layers.1.self_attn.q_proj": (64, 32),
    "layers.1.self_attn.o_proj": (32, 32),
    "layers.0.linear_attn.in_proj_qkv": (64, 32),
}
BESIDE: dict[str, dict[str, Any]] = {
    "lev-model": {
        "lev_release.json": {},
        "calibration.json": {
            "temperatures": {"choice:A:small": 1.5, "choice:A:mid": 0.5, "score:A": 2.0, "noul:B": 3.0}
        },
    },
    "kev-4b": {"training_config.json": {"args": {"head_dim": 6}, "base_revision": "x"}},
    "nimble-9b": {"schema_config.json": {"task": "schema_candidate_classification_v2"}},
}


def test_prompts_are_those_of_the_reference() -> None:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, separators=None: json.dumps(
        value, ensure_ascii=False, separators=tuple(separators) if separators else None
    )
    templates = {
        "openjev": decisions.prompt("openjev"),
        "lev": decisions.prompt("lev"),
        "kev": decisions.prompt("kev"),
        "nimble": decisions.prompt("nimble"),
        "clef": decisions.prompt("clef"),
        "laya": decisions.prompt("laya", FIRST="[CLS]", BETWEEN="[SEP]", MARKER="[MASK]"),
        "julia": decisions.prompt("julia", FIRST="[CLS]", BETWEEN="[SEP]", MARKER="[MASK]"),
    }
    cases = json.loads((RECORDED / "prompts.json").read_text(encoding="utf-8"))
    assert {case["kind"] for case in cases} == templates.keys()
    for case in cases:
        assert environment.from_string(templates[case["kind"]]).render(**case["of"]) == case["prompt"], case["kind"]


def base_of(folder: Path) -> Path:
    checkpoints.build("openjev", folder / "base")
    shutil.rmtree(folder / "base" / "helper")
    return folder / "base"


def adapter(folder: Path, name: str) -> Path:
    """A PEFT folder with the files that say what it makes of a model."""
    home = folder / name
    home.mkdir()
    said = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/x", "lora_alpha": 8, "r": 4, "bias": "none"}
    (home / "adapter_config.json").write_text(json.dumps(said))
    pairs = {}
    for module, (rows, width) in WEIGHTS.items():
        for letter, shape in (("A", [4, width]), ("B", [rows, 4])):
            values = checkpoints.values(name, f"model.{module}{letter}", shape, 0.0, 0.3).astype(np.float32)
            pairs[f"base_model.model.model.{module}.lora_{letter}.weight"] = values
    save_file(pairs, home / "adapter_model.safetensors")
    for file, content in BESIDE[name].items():
        (home / file).write_text(json.dumps(content))
    if name == "kev-4b":
        shutil.copyfile(RECORDED / "head.pt", home / "head.pt")
    return home


@pytest.mark.parametrize(("name", "kind"), [*zip(BESIDE, ("lev", "kev", "nimble"), strict=True)])
def test_adapters_that_make_a_model_decide(name: str, kind: str, tmp_path: Path) -> None:
    base, wanted = base_of(tmp_path), json.loads((RECORDED / "adapters.json").read_text())
    gguftools.convert(base, tmp_path / "base.gguf", "f32")
    gguftools.convert(base, tmp_path / "own.gguf", "f32", options=ConvertOptions(merge_lora=[adapter(tmp_path, name)]))
    before, own = gguftools.load(tmp_path / "base.gguf"), gguftools.load(tmp_path / "own.gguf")
    assert isinstance(own.metadata, Metadata)
    found = {key: described(own.metadata, key) for key in own.metadata}
    assert {key: found.get(key) for key in wanted[kind]["keys"]} == wanted[kind]["keys"]
    added = set(found) - set(before.metadata) - set(wanted[kind]["keys"])
    assert added == {"tokenizer.chat_template.systemone", "tokenizer.chat_templates"}
    changed = [
        name
        for name, tensor in own.tensors.items()
        if name not in before.tensors or not np.array_equal(tensor.float32(), before.tensors[name].float32())
    ]
    assert sorted(changed) == sorted(wanted[kind]["tensors"])
    if kind == "kev":
        scores = option_scores(own, own.hidden_states(np.arange(20, 40)[None]))[0, -2:]
        np.testing.assert_allclose(scores, wanted["scores"], atol=2e-5)  # of llama.cpp


def test_what_makes_no_model_that_decides(tmp_path: Path) -> None:
    base = base_of(tmp_path)
    lev, kev = adapter(tmp_path, "lev-model"), adapter(tmp_path, "kev-4b")
    with pytest.raises(OptionError, match="both make a model decide"):
        gguftools.convert(base, tmp_path / "own.gguf", options=ConvertOptions(merge_lora=[lev, kev]))
    with pytest.raises(OptionError, match="a model that decides has no other parts"):
        gguftools.convert(base, tmp_path / "own.gguf", options=ConvertOptions(merge_lora=[lev]), part="mtp")
    (lev / "calibration.json").write_text('{"temperatures": {"choice:A:tiny": 1.0}}')
    with pytest.raises(ModelError, match=r"'choice\.tiny'"):
        gguftools.convert(base, tmp_path / "own.gguf", options=ConvertOptions(merge_lora=[lev]))
    (lev / "calibration.json").unlink()
    with pytest.raises(FileError, match=r"calibration\.json"):
        gguftools.convert(base, tmp_path / "own.gguf", options=ConvertOptions(merge_lora=[lev]))
    (kev / "head.pt").write_bytes(b"nothing")
    with pytest.raises(FileError, match=r"head\.pt"):
        gguftools.convert(base, tmp_path / "own.gguf", options=ConvertOptions(merge_lora=[kev]))
    assert not list(tmp_path.glob("*.gguf"))


def test_laya_scores_tokens_for_each_kind_of_question(tmp_path: Path) -> None:
    checkpoints.build("laya", tmp_path / "laya")
    gguftools.convert(tmp_path / "laya", tmp_path / "f32.gguf", "f32")
    model = gguftools.load(tmp_path / "f32.gguf")
    recorded = np.load(checkpoints.FAMILIES / "laya" / "scores.npz")  # by torch's layers
    for i in (0, 1):
        wanted, ids = recorded[f"scores{i}"], recorded[f"ids{i}"]
        scores = option_scores(model, model.hidden_states(np.stack([ids, ids])))
        assert np.abs(scores - wanted).max() < 1e-5 * wanted.std()
    found = gguftools.open(tmp_path / "f32.gguf").embed(["a word"])
    assert (found.vectors.shape[1], found.normalize, found.warnings) == (3, -1, ())


def test_clef_decides_questions_jointly(tmp_path: Path) -> None:
    checkpoints.build("clef", tmp_path / "clef")
    gguftools.convert(tmp_path / "clef", tmp_path / "f32.gguf", "f32")
    model, tokenizer = gguftools.load(tmp_path / "f32.gguf"), gguftools.open(tmp_path / "f32.gguf").tokenizer
    cases = json.loads((RECORDED / "prompts.json").read_text(encoding="utf-8"))
    prompts = [case["prompt"] for case in cases if case["kind"] == "clef"]
    for prompt, wanted in zip(prompts, json.loads((RECORDED / "clef.json").read_text()), strict=True):
        np.testing.assert_allclose(joint_scores(model, spans_of(tokenizer, prompt)), wanted, atol=1e-5)  # of llama.cpp
    for wrong, problem in (
        ("no question", "no questions"),
        (f"a{SEPARATOR}{OPTION}b", "in front of all questions"),
        (f"TYPE: what{SEPARATOR}{QUESTION}b", "not of a known type"),
        (f"{OPTION}", "is empty"),
        (f"\nTYPE: noul\nINSTRUCTION: {SEPARATOR}{QUESTION}b", "one without options"),
    ):
        with pytest.raises(OptionError, match=problem):
            spans_of(tokenizer, wrong)


def test_encoders_of_models_that_decide(tmp_path: Path) -> None:
    checkpoints.build_encoder("qwen3-5", tmp_path / "own" / "model")
    shutil.copytree(tmp_path / "own" / "model", tmp_path / "deciding" / "model")
    (tmp_path / "deciding" / "model" / "helper").mkdir()
    (tmp_path / "deciding" / "model" / "helper" / "shim.py").touch()
    for name in ("own", "deciding"):
        gguftools.convert(tmp_path / name / "model", tmp_path / f"{name}.gguf", "f32", part="mmproj")
    assert (tmp_path / "own.gguf").read_bytes() == (tmp_path / "deciding.gguf").read_bytes()


def test_files_beside_an_encoder_that_are_wrong(tmp_path: Path) -> None:
    checkpoints.build("laya", tmp_path / "laya")
    own = tmp_path / "laya" / "rl_agent_config.json"
    said = json.loads(own.read_text())
    for wrong, problem in (
        ({"head_layers": None}, 'no "head_layers"'),
        ({"temperature": ["x"]}, '"temperature" is no list'),
        ({"temperature_by_options": {"choice:4": 1.0}}, r"'choice\.4'"),
    ):
        own.write_text(json.dumps(said | wrong))
        with pytest.raises(ModelError, match=problem):
            gguftools.convert(tmp_path / "laya", tmp_path / "own.gguf")
