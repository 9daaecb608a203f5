"""`gguftools graph`: the list, the values, and the first node at which two runs part."""

from __future__ import annotations

import gzip
import json
import re
import time

import numpy as np
import pytest

import gguftools
from gguftools.conversion.options import ConvertOptions
from quants.errors import FileError, GgufToolsError, ModelError, OptionError, VocabularyError

from .. import zoo, zoo_build
from ..conftest import ROOT
from ..template import without_notes_of_the_machine
from .command_line import typed
from .tiny_models import edited

LOGS = ROOT / "tests" / "data" / "eval_callback"
TOKENS = (39, 72, 5, 100, 7, 31, 2)
FAMILIES = (
    "qwen2",
    "qwen3-moe",
    "phi3",
    "gemma3",
    "deepseek-v2-lite",
    "mamba2",
    "lfm2",
    "falcon-h1",
    "bert",
    "gpt2",
    "bloom",
    "glm4",
    "olmo",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of the zoo, and GGUF files of them."""
    folder = tmp_path_factory.mktemp("graph")
    for entry in FAMILIES:
        zoo_build.build(zoo.ZOO, entry, folder / entry)
        gguftools.convert(
            folder / entry, folder / f"{entry}.gguf", "f32", options=ConvertOptions(check_tokenizer=False)
        )
    for name in ("qwen2", "qwen3-moe"):
        (folder / f"{name}.log").write_bytes(gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return folder / "qwen2.gguf"


def swapped(model, name):
    """A weight whose rows are in another order, within heads of 16 rows."""
    array = gguftools.open(model).tensors[name].float32()
    return array.reshape(-1, 2, 8, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


# The list


@pytest.mark.parametrize("entry", FAMILIES)
def test_nodes_have_names_of_their_own_and_read_earlier_ones(folder, entry):
    shown = gguftools.graph(folder / f"{entry}.gguf")
    names = [node.name for node in shown.nodes]
    assert len(set(names)) == len(names)
    assert [node.number for node in shown.nodes] == list(range(len(names)))
    for i, node in enumerate(shown.nodes):
        assert set(node.inputs) <= set(names[:i])
    read = {weight.name for node in shown.nodes for weight in node.weights}
    tensors = set(gguftools.open(folder / f"{entry}.gguf").tensors)
    assert read <= tensors
    assert tensors - read <= {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


def test_json_has_a_stable_form(model):
    found = json.loads(typed("graph", model, "--json").stdout)
    assert list(found) == ["format_version", "file", "architecture", "nodes"]
    assert found["nodes"][0] == {
        "number": 0,
        "name": "embd",
        "layer": None,
        "operation": "Embed",
        "inputs": [],
        "weights": [{"name": "token_embd.weight", "format": "F32", "shape": [512, 64]}],
        "shape": [64],
        "attributes": {"scale": 1.0},
    }
    assert found["nodes"][5]["attributes"] == {"base": 1000000.0, "width": 16, "scaled": True, "pairs": "halves"}
    assert [node["name"] for node in found["nodes"][-2:]] == ["result_norm", "result_output"]
    assert len(found["nodes"]) == 33


def test_layers_of_the_same_make_are_folded(folder, model):
    out = typed("graph", model).stdout
    assert "layer 0; layer 1 as layer 0" in out
    assert "attn_norm-1" not in out
    assert "attn_norm-1" in typed("graph", model, "--all").stdout
    found = gguftools.graph(folder / "gemma3.gguf").distinct_groups()
    assert [(each.layer, each.others) for each in found] == [(None, ()), (0, (1, 2, 3, 4, 6)), (5, ()), (None, ())]
    assert "layer 0; layers 1 to 4, 6 as layer 0" in typed("graph", folder / "gemma3.gguf").stdout


def test_one_layer(model):
    done = typed("graph", model, "--layer", "1")
    assert "attn_norm-1" in done.stdout
    assert not re.search("attn_norm-0|result_norm", done.stdout)
    done = typed("graph", model, "--layer", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: there is no layer 2: {model} has layers 0 to 1\n"


def test_dot_is_a_digraph(model):
    done = typed("graph", model, "--dot")
    lines = done.stdout.splitlines()
    assert lines[0] == f'digraph "{model}" {{'
    assert lines[-1] == "}"
    assert done.stdout.count("{") == done.stdout.count("}")
    statement = r'digraph "[^"]*" \{|rankdir=TB;|node \[.*\];|subgraph cluster_\d+ \{|label="layer \d+";|\}|'
    statement += r'n\d+ \[label="(?:[^"\\]|\\.)*"\];|n\d+ -> n\d+;'
    assert all(re.fullmatch(statement, line.strip()) for line in lines)
    edges = sum(len(node.inputs) for node in gguftools.graph(model).nodes)
    assert sum(" -> " in line for line in lines) == edges


def test_listing_takes_no_time(folder):
    zoo_build.build(zoo.ZOO, "deepseek-v2-lite-27l", folder / "long")
    model = gguftools.open(folder / "long")
    gguftools.graph(model)
    start = time.process_time()
    assert len(gguftools.graph(model).nodes) > 500
    assert time.process_time() - start < 1


def test_encoder_and_decoder(tmp_path):
    zoo_build.build(zoo.ZOO, "t5", tmp_path / "t5")
    model = tmp_path / "t5.gguf"
    gguftools.convert(tmp_path / "t5", model, "f32", options=ConvertOptions(check_tokenizer=False))
    shown = gguftools.graph(model)
    names = [node.name for node in shown.nodes]
    assert names[:3] == ["enc.embd", "enc.pos_bias-0", "enc.attn_norm-0"]
    assert names[-2:] == ["result_norm", "result_output"]
    cross = shown.node("kqv_cross-1")
    assert cross.inputs == ("Qcur_cross-1", "Kcur_cross-1", "Vcur_cross-1")
    assert shown.node("Kcur_cross-1").inputs == ("enc.result_norm",)
    assert {weight.name for node in shown.nodes for weight in node.weights} == set(gguftools.open(model).tensors)
    out = typed("graph", model).stdout
    assert "enc.blk.0\n" in out
    assert "dec.blk.0\n" in out
    done = typed("graph", model, "--values", "--tokens", "1,2")
    assert done.returncode == 1
    assert "error: t5 models read two texts" in done.stderr


# Values


def test_values_are_those_of_the_run(model):
    found = gguftools.node_values(model, TOKENS)
    assert found.tokens == TOKENS
    assert found.values["Qcur-0"].shape == (7, 4, 16)
    assert np.array_equal(found.values["result_output"], gguftools.load(model).logits(TOKENS))
    assert list(found.values) == [node.name for node in gguftools.graph(model).nodes]


def test_values_are_printed_as_eval_callback_does(model):
    done = typed("graph", model, "--values", "--tokens", "39,72")
    assert "\nattn_norm-0 = Norm(embd): 2 × 64\n" in done.stdout
    log = gzip.decompress((LOGS / "qwen2.log.gz").read_bytes()).decode()
    theirs = re.search(r" attn_norm-0 = [^[]*\[\s*\[\s*\[([^]]*)\].*?\[([^]]*)\].*?sum = (\S+)", log, re.DOTALL)
    ours = re.search(r"attn_norm-0 = .*\n\s*\[([^]]*)\]\n\s*\[([^]]*)\]\n\s*sum = (\S+)", done.stdout)
    for mine, other in zip(ours.groups(), theirs.groups(), strict=True):
        numbers = [[float(word) for word in re.findall(r"-?\d+\.\d+", text)] for text in (mine, other)]
        assert np.allclose(*numbers, atol=2e-4, rtol=1e-5)
    one = typed("graph", model, "--values", "--tokens", "39", "--layer", "1").stdout
    assert one.startswith("attn_norm-1 = ")
    assert "attn_norm-0 = " not in one
    as_json = json.loads(typed("graph", model, "--values", "--tokens", "39,72", "--json").stdout)
    assert list(as_json) == ["format_version", "file", "architecture", "tokens", "precision", "nodes"]
    assert list(as_json["nodes"][0]) == ["name", "shape", "first", "last", "sum"]


def test_a_text_is_cut_by_the_files_tokenizer(model):
    text = "Hello world"
    assert gguftools.node_values(model, text).tokens == tuple(gguftools.open(model).tokenizer.encode(text))


def test_values_of_routers(folder):
    found = gguftools.node_values(folder / "qwen3-moe.gguf", TOKENS).values
    assert found["ffn_moe_topk-0"].shape == found["ffn_moe_weights-0"].shape == (7, 3)
    assert np.allclose(found["ffn_moe_weights_norm-0"].sum(axis=1), 1)


def test_saved_values(model, tmp_path):
    target = tmp_path / "values.npz"
    done = typed("graph", model, "--tokens", "39,72,5", "--save", target)
    assert done.stdout == f"{target}: 33 values of 3 tokens\n"
    assert np.load(target)["ffn_inp-1"].shape == (3, 64)
    assert typed("graph", model, "--tokens", "39", "--save", target).returncode == 1
    assert typed("graph", model, "--against", target).returncode == 0
    assert typed("graph", model, "--against", target, "--tokens", "39,72,5").returncode == 0
    done = typed("graph", model, "--against", target, "--tokens", "39,72")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: {target} is of other tokens: it has 3 tokens (39, 72, 5), the text has 2 (39, 72)\nhint: "
    )
    assert "is no .npz file" in typed("graph", model, "--tokens", "39", "--save", tmp_path / "values.npy").stderr
    (tmp_path / "broken.npz").write_bytes(target.read_bytes()[:-100])
    with pytest.raises(FileError, match="holds no values of nodes"):
        gguftools.compare_values(model, tmp_path / "broken.npz")


# The first node that differs


def test_the_same_file_is_equal(model):
    found = gguftools.compare_values(model, model, TOKENS)
    assert (found.equal, found.not_compared, len(found.nodes)) == (True, (), 33)
    done = typed("graph", model, "--against", model, "--tokens", "39,72")
    assert done.returncode == 0
    assert done.stdout.endswith("no node differs by more than 0.001 standard deviations\n")


def test_permuted_rows_of_queries(model, tmp_path):
    wrong = edited(model, tmp_path / "wrong.gguf", {}, {"blk.1.attn_q.weight": swapped(model, "blk.1.attn_q.weight")})
    found = gguftools.compare_values(wrong, model, TOKENS)
    assert (found.first.name, found.first.number, found.first.layer) == ("Qcur-1", 17, 1)
    assert found.first.relative > 1
    assert [weight.name for weight in found.cause.changed] == ["blk.1.attn_q.weight"]
    assert found.cause.weights == ("blk.1.attn_q.weight", "blk.1.attn_q.bias")
    assert (found.cause.attributes, found.keys) == ({}, {})
    mine, theirs = (gguftools.node_values(file, TOKENS).values["Qcur-1"] for file in (wrong, model))
    apart = np.abs(mine - theirs).reshape(7, -1)
    assert divmod(int(apart.argmax()), 64) == (found.first.token, found.first.element)
    assert found.first.largest == pytest.approx(apart.max())
    done = typed("graph", wrong, "--against", model, "--tokens", "39,72,5")
    assert done.returncode == 1
    assert "first difference: Qcur-1 (node 17, Linear)" in done.stdout
    assert "reads blk.1.attn_q.weight, which differs: F32 here, F32 there" in done.stdout
    assert "reads blk.1.attn_q.bias, which is the same in both" in done.stdout


def test_a_wrong_base_of_the_rotation(model, tmp_path):
    wrong = edited(model, tmp_path / "wrong.gguf", {"qwen2.rope.freq_base": 10000.0})
    found = gguftools.compare_values(wrong, model, TOKENS)
    assert found.first.name == "Qcur_rope-0"
    assert found.cause.weights == ()
    assert found.cause.attributes == {"Qcur_rope-0.base": (10000.0, 1000000.0)}
    assert found.keys == {"qwen2.rope.freq_base": (10000.0, 1000000.0)}
    assert gguftools.compare_values(wrong, model, TOKENS[:1]).equal  # the first position is not rotated


def test_a_scaled_column_of_a_net(model, tmp_path):
    down = gguftools.open(model).tensors["blk.0.ffn_down.weight"].float32().copy()
    down[:, 3] *= 1.5
    wrong = edited(model, tmp_path / "wrong.gguf", {}, {"blk.0.ffn_down.weight": down})
    found = gguftools.compare_values(wrong, model, TOKENS)
    assert found.first.name == "ffn_out-0"
    assert [weight.name for weight in found.cause.changed] == ["blk.0.ffn_down.weight"]
    assert gguftools.compare_values(wrong, model, TOKENS, tolerance=10).equal


def test_saved_values_find_a_fault_too(model, tmp_path):
    gguftools.node_values(model, TOKENS).save(tmp_path / "right.npz")
    wrong = edited(model, tmp_path / "wrong.gguf", {"qwen2.attention.layer_norm_rms_epsilon": 0.1})
    found = gguftools.compare_values(wrong, tmp_path / "right.npz")
    assert (found.kind, found.first.name, found.cause.changed) == ("values", "attn_norm-0", None)


def test_growth_and_the_first_jump(model, tmp_path):
    """Rounded everywhere, and in one place wrong."""
    gguftools.quantize(model, "Q8_0", tmp_path / "q8.gguf")
    plain = gguftools.compare_values(tmp_path / "q8.gguf", model, TOKENS)
    assert plain.first.name == "embd"
    assert plain.jump is None
    rows = swapped(model, "blk.1.attn_k.weight")
    wrong = edited(tmp_path / "q8.gguf", tmp_path / "wrong.gguf", {}, {"blk.1.attn_k.weight": rows})
    found = gguftools.compare_values(wrong, model, TOKENS)
    assert (found.first.name, found.jump.name) == ("embd", "Kcur-1")
    assert found.jump.jump > 10
    assert found.jump_cause.changed[0].name == "blk.1.attn_k.weight"
    assert "first jump: Kcur-1" in typed("graph", wrong, "--against", model, "--tokens", "39,72,5").stdout


def test_comparisons_as_json(model, tmp_path):
    wrong = edited(model, tmp_path / "wrong.gguf", {"qwen2.rope.freq_base": 10000.0})
    done = typed("graph", wrong, "--against", model, "--tokens", "39,72,5", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert list(found) == [
        "format_version",
        "file",
        "other",
        "kind",
        "tokens",
        "tolerance",
        "nodes",
        "not_compared",
        "first",
        "cause",
        "jump",
        "jump_cause",
        "keys",
        "equal",
    ]
    assert list(found["first"]) == [
        "number",
        "name",
        "operation",
        "layer",
        "largest",
        "relative",
        "rms",
        "token",
        "element",
        "value",
        "other_value",
        "differs",
        "jump",
    ]


@pytest.mark.parametrize("entry", ["qwen2", "qwen3-moe"])
def test_llama_cpp_computes_the_same(folder, entry):
    """Its log was written with a float32 cache and no flash attention; it has the last rows of what the head reads."""
    found = gguftools.compare_values(folder / f"{entry}.gguf", folder / f"{entry}.log")
    assert found.equal
    assert (found.kind, found.tokens) == ("log", (39, 72) if entry == "qwen2" else found.tokens)
    assert set(found.not_compared) <= {"attn_out-0", "attn_out-1"}  # which have no name there
    names = [each.name for each in found.nodes]
    assert names[0] == "embd"
    assert "Qcur_rope-1" in names


def test_a_log_of_llama_cpp_finds_faults(folder, model, tmp_path):
    wrong = edited(model, tmp_path / "wrong.gguf", {}, {"blk.1.attn_q.weight": swapped(model, "blk.1.attn_q.weight")})
    assert gguftools.compare_values(wrong, folder / "qwen2.log").first.name == "Qcur-1"
    wrong = edited(model, tmp_path / "wrong.gguf", {"qwen2.rope.freq_base": 100.0})
    assert gguftools.compare_values(wrong, folder / "qwen2.log").first.name == "Qcur_rope-0"
    up = gguftools.open(model).tensors["blk.0.ffn_up.weight"].float32().copy()
    up[70:90] *= -1  # neither the first nor the last ones, which are printed
    wrong = edited(model, tmp_path / "wrong.gguf", {}, {"blk.0.ffn_up.weight": up})
    assert gguftools.compare_values(wrong, folder / "qwen2.log").first.name == "ffn_up-0"


def test_a_log_that_is_cut_off(folder, model, tmp_path):
    whole = (folder / "qwen2.log").read_text()
    (tmp_path / "cut.log").write_text(whole[: whole.index(" l_out-0 = ") + 300])
    found = gguftools.compare_values(model, tmp_path / "cut.log")
    assert found.equal
    assert found.nodes[-1].name == "ffn_out-0"


@pytest.mark.verify
@pytest.mark.parametrize(
    "entry", ["qwen2", "qwen3-moe", "phi3", "gemma3", "deepseek-v2-lite", "mamba2", "lfm2", "gpt2"]
)
def test_transformers_computes_the_same(folder, entry):
    found = gguftools.compare_values(folder / f"{entry}.gguf", folder / entry, TOKENS)
    assert found.equal
    names = {each.name for each in found.nodes}
    last = len(gguftools.graph(folder / f"{entry}.gguf").layers) - 1
    assert {"result_norm", "result_output", f"attn_norm-{last}"} <= names
    assert len(names) >= 3 * (last + 1) + 3


@pytest.mark.verify
def test_transformers_finds_faults(folder, model, tmp_path):
    wrong = edited(model, tmp_path / "wrong.gguf", {"qwen2.rope.freq_base": 10000.0})
    found = gguftools.compare_values(wrong, folder / "qwen2", TOKENS)
    assert (found.kind, found.first.name) == ("transformers", "kqv_out-0")
    assert found.cause.between == ("Qcur_rope-0", "Kcur_rope-0")
    assert set(found.cause.reads) == {"Qcur-0", "Kcur-0", "Vcur-0", "attn_norm-0"}
    done = typed("graph", wrong, "--against", folder / "qwen2", "--tokens", "39,72,5")
    assert "it, not compared: Qcur_rope-0, Kcur_rope-0" in done.stdout


# What is refused, in one line


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["absent.gguf"], 1, "absent.gguf"),
        (["--values"], 2, "there is no text to run"),
        (["-p", "Hi"], 2, "--prompt needs"),
        (["--tolerance", "1"], 2, "--tolerance needs --against"),
        (["--values", "--against", "x"], 2, "--values"),
        (["--dot", "--json"], 2, "--json"),
        (["--layer", "0", "--all"], 2, "--layer"),
        (["--values", "--tokens", "1,x"], 1, "'1,x' are no ids of tokens"),
        (["--values", "--tokens", "512"], 1, "token id 512 is outside the vocabulary of 512"),
        (["--values", "--tokens", "1", "--precision", "low"], 1, "precision"),
        (["--against", "nowhere", "--tokens", "1"], 1, "nowhere does not exist"),
        (["--against", "README.md", "--tokens", "1"], 1, "README.md cannot be compared with"),
        (["--against", "tests", "--tokens", "1"], 1, "tests is a folder without config.json"),
    ],
)
def test_errors_are_one_line(model, monkeypatch, words, code, message):
    monkeypatch.chdir(ROOT)
    done = typed("graph", *([] if words[0].endswith(".gguf") else [model]), *words)
    assert done.returncode == code
    first, *hints = without_notes_of_the_machine(done.stderr).strip().splitlines()
    assert message in first
    assert first.startswith("error: ")
    assert all(line.startswith("hint: ") for line in hints)


def test_what_cannot_be_compared(folder, model, tmp_path):
    with pytest.raises(OptionError, match="there is no text to run"):
        gguftools.compare_values(model, model)
    with pytest.raises(OptionError, match="tolerance is -1"):
        gguftools.compare_values(model, model, TOKENS, tolerance=-1)
    with pytest.raises(VocabularyError, match="make other tokens of the text"):
        gguftools.compare_values(model, folder / "gemma3.gguf", "Hello world")
    with pytest.raises(ModelError, match="outside the vocabulary"):
        gguftools.compare_values(folder / "gemma3.gguf", model, (550,))
    other = edited(model, tmp_path / "wide.gguf", {})
    assert gguftools.compare_values(other, folder / "phi3.gguf", TOKENS).first.name == "embd"
    with pytest.raises(GgufToolsError):
        gguftools.graph(folder / "qwen2.log")
