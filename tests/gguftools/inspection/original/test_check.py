"""`check`: sound files pass, broken ones are named by the right check."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.conversion.options import ConvertOptions
from gguftools.inspection.original.check import NAMES, check
from gguftools.inspection.original.checkpoint import Original
from gguftools.inspection.original.generation_checks import (
    GeneratedText,
    decoder_start,
    degeneration,
    first_difference,
    kl_divergences,
    loop_period,
)
from gguftools.quantization.options import QuantizeOptions
from quants.errors import GgufToolsError, OptionError
from runtime.sampling.parameters import Sampling

from .... import zoo_build
from ....archs.wholes import files
from ....verify.embeddings import made
from ....zoo import ZOO
from ...command_line import EXAMPLE, refused, typed
from ...tiny_models import edited

QUICK = ("keys", "weights", "chat template", "token ids", "special tokens")
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end_of_text|>{% endfor %}"
BOS, EOS, EOT = 2044, 2045, 2046


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("check") / "austen.gguf"
    gguftools.convert(EXAMPLE, path, "q8_0")
    return path


def rows_of_rope_halves(values: Any, heads: int) -> Any:
    """Rows of q or k as if the model rotated the other way."""
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def broken(name: str, file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and tensors of a file in which one thing is wrong."""
    tensors = gguftools.open(file).tensors
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    layer = {part: f"blk.1.{part}.weight" for part in parts}
    return {
        "template": ({"tokenizer.chat_template": CHATML}, {}),
        "no template": ({"tokenizer.chat_template": None}, {}),
        "pre-tokenizer": ({"tokenizer.ggml.pre": "gpt-2"}, {}),
        "eos": ({"tokenizer.ggml.eos_token_id": np.uint32(BOS)}, {}),
        "no bos": ({"tokenizer.ggml.bos_token_id": None}, {}),
        "no bos in front": ({"tokenizer.ggml.add_bos_token": False}, {}),
        "rope": (
            {},
            {
                layer[part]: rows_of_rope_halves(tensors[layer[part]].float32(), heads)
                for part, heads in (("attn_q", 8), ("attn_k", 4))
            },
        ),
        "zeros": ({}, {name: np.zeros(tensors[name].shape, np.float32) for name in layer.values()}),
        "scales": ({}, {layer["ffn_up"]: 8 * tensors[layer["ffn_up"]].float32()}),
        "theta": ({"llama.rope.freq_base": np.float32(500_000)}, {}),
        "epsilon": ({"llama.rope.freq_base": None, "llama.rope.dimension_count": np.uint32(16)}, {}),
    }[name]


def wrong(report: Any) -> dict[str, str]:
    return {each.name: each.seen for each in report.checks if each.verdict == "wrong"}


def test_a_sound_file(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gguftools.inspection.original.generation_checks.ANSWER", 8)
    told: list[str] = []
    report = check(file, EXAMPLE, n=16, progress=lambda done, total, name: told.append(name))
    assert report.ok, wrong(report)
    assert [each.name for each in report.checks] == list(NAMES)
    assert told == list(NAMES[1:])
    assert {each.name for each in report.checks if each.verdict != "ok"} == {"vectors", "predictor"}
    assert report["predictions"].figures["mean_kl"] < 1e-3
    assert report["weights"].figures["least_sqnr"] > 40
    assert report["token ids"].figures["differing"] == 0
    assert not report["end of text"].figures["reached"]
    again = json.loads(json.dumps(report.as_dict()))
    assert again["checks"][1]["seen"] == report["keys"].seen


@pytest.mark.parametrize(
    ("what", "named", "said"),
    [
        ("template", "chat template", "8 of 8 conversations become other texts than the original's; a question:"),
        ("no template", "chat template", "the file has no chat template; the original has one"),
        ("pre-tokenizer", "token ids", "by the original 351"),
        ("eos", "special tokens", "eos is 2044 '<|begin_of_text|>'; the original's is 2045 '<|end_of_text|>'"),
        ("no bos", "special tokens", "the file names no bos token; the original's is 2044"),
        ("no bos in front", "token ids", "'' with special tokens around it: token 0 is the end, by the original 2044"),
        ("rope", "weights", "blk.1.attn_k.weight (F32) is not the original's: -2.7 dB"),
        ("zeros", "weights", "blk.1.attn_k.weight (F32) is not the original's: 0.0 dB"),
        ("scales", "weights", "blk.1.ffn_up.weight (F32) is not the original's: -16.9 dB"),
        ("theta", "keys", "llama.rope.freq_base is 500000; the original's is 10000"),
        ("epsilon", "keys", "llama.rope.dimension_count is 16; the original's is 32"),
    ],
)
def test_what_is_wrong_is_named(what: str, named: str, said: str, file: Path, tmp_path: Path):
    made = edited(file, tmp_path / "broken.gguf", *broken(what, file))
    found = wrong(check(made, EXAMPLE, only=QUICK))
    assert said in found[named]
    assert set(found) - {named} <= ({"token ids"} if what == "no bos" else set())


def test_a_layer_of_zeros_is_seen_alone(file: Path, tmp_path: Path):
    assert check(file, only=["weights"])["weights"].seen.startswith("none of 31 tensors is zero")
    made = edited(file, tmp_path / "broken.gguf", *broken("zeros", file))
    assert wrong(check(made, only=["weights"]))["weights"] == "blk.1.attn_q.weight is zero throughout (and 6 more)"


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight"])
def test_zeros_around_layers_are_seen_alone(name: str, file: Path, tmp_path: Path):
    zeros = np.zeros(gguftools.open(file).tensors[name].shape, np.float32)
    made = edited(file, tmp_path / "broken.gguf", {}, {name: zeros})
    assert wrong(check(made, only=["weights"]))["weights"] == f"{name} is zero throughout"


def test_a_template_differs_in_its_lines(file: Path, tmp_path: Path):
    made = edited(file, tmp_path / "broken.gguf", {"tokenizer.chat_template": CHATML})
    found = check(made, EXAMPLE, only=["chat template"])["chat template"]
    assert {"-user: What is 2 + 2?", "+<|im_start|>user", "+What is 2 + 2?<|im_end|>"} <= set(found.lines)
    alone = check(made, only=["chat template"])["chat template"]
    assert "'<|im_end|>', which is no token of this vocabulary" in alone.seen


def test_weights_of_another_model_predict_otherwise(file: Path, tmp_path: Path):
    tensors = gguftools.open(file).tensors
    chance = np.random.default_rng(0)
    names = [name for name in tensors if "ffn_down" in name or "attn_output" in name]
    noise = {name: chance.standard_normal(tensors[name].shape, np.float32) for name in names}
    made = edited(file, tmp_path / "broken.gguf", {}, noise)
    found = wrong(check(made, EXAMPLE, only=["predictions"], n=4))
    assert "the KL divergence of a sound file is below 2" in found["predictions"]
    floats = {name: tensor.float32() for name, tensor in tensors.items()}
    floats["blk.1.ffn_up.weight"] *= 1.5
    made = edited(file, tmp_path / "floats.gguf", {}, floats)
    found = wrong(check(made, EXAMPLE, only=["predictions"], n=4))
    assert "below 0.01 for weights that are not quantized" in found["predictions"]


def test_decoders_begin_with_the_token_that_generation_takes(file: Path):
    """Without a key that is the token that begins texts."""
    metadata = dict(gguftools.open(file).metadata)
    assert decoder_start(metadata | {"llama.decoder_start_token_id": 7}) == 7
    assert decoder_start(metadata) == BOS


def test_greedy_texts_part_where_each_of_both_goes_on_by_itself(file: Path, tmp_path: Path):
    """The one-pass comparison says the same as the two texts side by side."""
    small = tmp_path / "small.gguf"
    gguftools.quantize(file, "Q2_K", small, options=QuantizeOptions(allow_requantize=True))
    ours, theirs = (gguftools.open(path) for path in (small, file))
    texts = []
    for model in (ours, theirs):
        generation = model.generate("The capital of France is", Sampling(temperature=0), max_tokens=24)
        list(generation)
        texts.append(generation.tokens)
    place = next(i for i in range(24) if texts[0][i] != texts[1][i])
    prompt = [BOS, *theirs.tokenizer.encode("The capital of France is", add_special=False)]
    found = first_difference(gguftools.load(theirs), 2048, GeneratedText(prompt, texts[0], "", "length"))
    assert found is not None
    assert (found.after, found.theirs) == (place, texts[1][place])
    assert found.gap > 0
    logits = gguftools.load(theirs).logits([*prompt, *texts[0][:place]])[-1].astype(float)
    share = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert found.probability == pytest.approx(share[texts[0][place]], rel=1e-3)
    assert found.gap == pytest.approx(logits[found.theirs] - logits[texts[0][place]], rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "text", "said"),
    [
        ([], "", "an empty text"),
        ([5, 6], " \n", "an empty text"),
        ([1, 2, 3] + [7] * 16, "abcGGGG", "one token 16 times in a row"),
        ([*range(40), *[7] * 16], "a text, then GGGG", "one token 16 times in a row"),
        ([7] * 15 + [1, 2], "GGGG ab", None),
        ([7] * 20 + list(range(60)), "--- and a long text", None),
        ([7] * 20 + list(range(19)), "G", "one token 20 times in a row"),
        (list(range(20)), "a\ufffd\ufffd\ufffdb", "3 of 5 characters"),
        (list(range(20)), "a\ufffd" + "text" * 20, None),
        ([9, 1, 2, 3] * 13, "loop", "the same 4 tokens again and again"),
        (list(range(9)) * 10, "a longer loop", None),
        (list(range(60)), "a text", None),
    ],
)
def test_garbage(tokens: list[int], text: str, said: str | None):
    found = degeneration(tokens, text)
    assert found is None if said is None else said in str(found)


def test_a_loop_is_as_short_as_it_can_be():
    assert loop_period([1, 2] * 24) == 2
    assert loop_period([1, 2] * 23) is None
    assert loop_period([3, *([1, 2, 1, 4] * 12)]) == 4


def test_one_token_again_and_again_is_named(file: Path, tmp_path: Path):
    bias = np.zeros(2048, np.float32)
    bias[38] = 100
    made = edited(file, tmp_path / "g.gguf", {}, {"output.bias": bias})
    found = wrong(check(made, only=["repetition"], n=24))
    assert "one token 24 times in a row: 'GGGG" in found["repetition"]
    assert "one token" in wrong(check(made, EXAMPLE, only=["repetition"], n=24))["repetition"]
    as_its_original = check(made, made, only=["repetition"], n=24)
    assert as_its_original.ok
    assert "as the original's" in as_its_original["repetition"].lines[0]


def test_an_answer_ends_where_a_text_ends(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gguftools.inspection.original.generation_checks.ANSWER", 4)
    turns = edited(file, tmp_path / "turns.gguf", {"tokenizer.chat_template": TURNS})
    found = check(turns, only=["end of text"])["end of text"]
    assert found.lines == ("an answer ends with 2045 '<|end_of_text|>', at which a text ends",)
    bias = np.zeros(2048, np.float32)
    bias[EOS] = 100
    ending = edited(turns, tmp_path / "ending.gguf", {}, {"output.bias": bias})
    assert check(ending, only=["end of text"])["end of text"].seen == "an answer ended after 1 tokens"
    begin = TURNS.replace("end_of_text", "begin_of_text")
    other = edited(file, tmp_path / "other.gguf", {"tokenizer.chat_template": begin})
    assert (
        "an answer ends with 2044 '<|begin_of_text|>'; a text of this file ends at '<|end_of_text|>'"
        in (wrong(check(other, only=["end of text"]))["end of text"])
    )
    bare = edited(file, tmp_path / "bare.gguf", {"tokenizer.chat_template": None})
    assert check(bare, only=["end of text"])["end of text"].verdict == "not applicable"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """A checkpoint of a sentence transformer, and its file beside it."""
    folder = tmp_path_factory.mktemp("embedder")
    made("bert", folder, head=False)
    checkpoint = folder / "checkpoint"
    (checkpoint / "1_Pooling").mkdir()
    settings = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    (checkpoint / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    kinds = ("models.Transformer", "models.Pooling")
    modules = [{"type": f"sentence_transformers.{k}", "path": p} for k, p in zip(kinds, ("", "1_Pooling"), strict=True)]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    gguftools.convert(checkpoint, folder / "file.gguf", "f32")
    return folder


def test_an_embedding_models_vectors(embedder: Path, tmp_path: Path):
    file, checkpoint = embedder / "file.gguf", embedder / "checkpoint"
    report = check(file, checkpoint)
    assert report.ok, wrong(report)
    found = report["vectors"]
    assert found.figures["pooling"] == "cls"
    assert found.figures["least_cosine"] == pytest.approx(1)
    assert found.lines[0].startswith("the original does not normalize")
    assert report["predictions"].verdict == report["repetition"].verdict == "not applicable"
    for number, said in ((1, "is mean; the original's is cls"), (None, "is missing; the original's is cls")):
        value = None if number is None else np.uint32(number)
        other = edited(file, tmp_path / "other.gguf", {"bert.pooling_type": value})
        assert said in wrong(check(other, checkpoint, only=["vectors"]))["vectors"]
    tensors = gguftools.open(file).tensors
    flat = edited(file, tmp_path / "flat.gguf", {}, {"token_embd.weight": 0 * tensors["token_embd.weight"].float32()})
    assert "cosine with the original's vectors" in wrong(check(flat, checkpoint, only=["vectors"]))["vectors"]
    positions = {"position_embd.weight": 0 * tensors["position_embd.weight"].float32()}
    same = edited(flat, tmp_path / "same.gguf", {}, positions)
    assert wrong(check(same, only=["vectors"]))["vectors"] == "different texts have the same vector"


def test_a_file_with_a_predictor(file: Path, tmp_path: Path):
    from ...lab.test_powerinfer import with_relu, write_predictor

    relu = with_relu(Path(shutil.copytree(EXAMPLE, tmp_path / "relu")))
    predictor = write_predictor(tmp_path / "predictor", 4, 256, 768, sparse_threshold=-1e9)
    gguftools.convert(relu, tmp_path / "sparse.gguf", "f32", options=ConvertOptions(predictor=predictor))
    assert "leaves no neuron out" in wrong(check(tmp_path / "sparse.gguf", only=["predictor"]))["predictor"]
    threshold = {"powerinfer.sparse_threshold": np.float32(1e9)}
    nothing = edited(tmp_path / "sparse.gguf", tmp_path / "nothing.gguf", threshold)
    assert "leaves out what matters" in wrong(check(nothing, only=["predictor"]))["predictor"]
    assert check(tmp_path / "sparse.gguf", relu, only=["weights"])["weights"].verdict == "ok"


def test_a_folders_own_words_have_the_last_word(tmp_path: Path, file: Path):
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "ck"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False, "add_eos_token": True}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    original = Original(gguftools.open(folder), folder)
    assert original.template == "{{ messages[0].content }}"
    encode = original.encoders["tokenizers"]
    assert encode("It", True) == [*encode("It", False), EOS]
    assert encode("<|begin_of_text|>It", True) == [BOS, *encode("It", False), EOS]
    assert set(original.tokens("eos")) == {
        "generation_config.json",
        "config.json",
        "the tokenizer",
        "what stands around texts",
    }
    assert list(original.tokens("eos").values()) == [[EOS]] * 4
    assert original.tokens("mask") == {}


def test_sentencepiece_is_an_original_too(tmp_path: Path, shared: Path):
    zoo_build.build(ZOO, "llama2-spm", tmp_path / "ck")
    gguftools.convert(tmp_path / "ck", tmp_path / "m.gguf", "f16")
    found = check(tmp_path / "m.gguf", tmp_path / "ck", only=QUICK)
    assert found.ok, wrong(found)
    assert found["token ids"].seen.endswith("sentencepiece")


def test_another_file_is_an_original_too(file: Path, tmp_path: Path):
    changes = {"llama.rope.freq_base": np.float32(500), "tokenizer.ggml.pre": "gpt-2"}
    other = edited(file, tmp_path / "other.gguf", changes)
    assert set(wrong(check(other, file, only=QUICK))) == {"keys", "token ids"}


def test_a_key_that_is_missing_means_something(file: Path, tmp_path: Path):
    other = edited(file, tmp_path / "other.gguf", {"llama.rope.freq_base": np.float32(500_000)})
    without = edited(file, tmp_path / "without.gguf", {"llama.rope.freq_base": None})
    assert check(without, file, only=["keys"])["keys"].verdict == "ok"  # 10000 is what a file without it means
    said = "rope_base of layer 0 is 10000.0 where a key is missing; the original's is 500000.0"
    assert wrong(check(without, other, only=["keys"]))["keys"].startswith(said)


def test_what_is_assumed_of_missing_keys_is_compared(tmp_path: Path):
    """Each number that follows from a key that the file lacks, with the key."""
    _, whole, _ = files("gemma3", tmp_path / "made")
    base, scale = "gemma3.rope.freq_base_swa", "gemma3.attention.scale"
    whole = edited(whole, tmp_path / "whole.gguf", {base: np.float32(12345), scale: np.float32(0.7)})
    lacks = edited(whole, tmp_path / "lacks.gguf", {base: None, scale: None})
    found = check(lacks, whole, only=["keys"])["keys"]
    said = [found.seen, *found.lines]
    assert found.verdict == "wrong"
    for number in ("rope_base of layer 0", "attention_scale of layer 0"):
        assert any(line.startswith(number) for line in said), said
    assert {f"{base} is missing; the original's is 12345", f"{scale} is missing; the original's is 0.7"} <= {*said}


def test_a_file_that_cannot_be_opened_or_run(file: Path, tmp_path: Path):
    (tmp_path / "no.gguf").write_bytes(b"GGUF\x03\0\0\0")
    report = check(tmp_path / "no.gguf")
    assert [each.name for each in report.checks] == ["file"]
    assert not report.ok
    damaged = Path(shutil.copy(file, tmp_path / "damaged.gguf"))
    with damaged.open("r+b") as raw:
        raw.seek(gguftools.open(file).file.parts[0].offsets["blk.0.ffn_norm.weight"])
        raw.write(np.full(256, np.nan, "<f4").tobytes())
    report = check(damaged, n=4)
    assert {"file", "runs"} <= set(wrong(report))
    assert report["repetition"].seen == "the file does not run"
    with pytest.raises(OptionError, match="there is no check 'token id'"):
        check(file, only=["token id"])


def test_command(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gguftools.inspection.original.generation_checks.ANSWER", 4)
    done = typed("check", file, "--against", EXAMPLE, "-n", "4")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[1] == "ok     keys            12 keys of llama have the original's values"
    assert done.stdout.endswith("austen.gguf: nothing wrong\n")
    other = edited(file, tmp_path / "other.gguf", {"tokenizer.ggml.eos_token_id": np.uint32(BOS)})
    done = typed("check", other, "--against", EXAMPLE, "-n", "4", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["verdict"], said["against"]) == ("wrong", str(EXAMPLE))
    assert [each["name"] for each in said["checks"] if each["verdict"] == "wrong"] == ["special tokens"]
    refused(typed("check", file, "--against", tmp_path / "absent"), "absent")


def test_what_is_no_model_is_refused(file: Path, tmp_path: Path):
    other = edited(file, tmp_path / "other.gguf", {"general.type": "delta"})
    refused(typed("check", other), "is a delta between two files, not a model")


def test_tokens_that_cannot_come_count_nothing():
    a = np.log(np.array([[0.5, 0.5, 0.0]]), out=np.full((1, 3), -np.inf), where=np.array([[True, True, False]]))
    b = np.log(np.array([[0.25, 0.5, 0.25]]))
    assert kl_divergences(a, b) == pytest.approx([0.5 * np.log(2)])
    assert kl_divergences(a, a) == pytest.approx([0])
    assert kl_divergences(b, a) == pytest.approx([np.inf])


def test_an_original_that_is_damaged_is_named(file: Path, tmp_path: Path):
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "ck"))
    (folder / "tokenizer.model").write_bytes(b"no such thing")
    found = check(file, folder, only=["token ids"])["token ids"]
    assert "tokenizer.model is no sentencepiece model" in found.seen
    assert found.lines == ("fetch it again",)
    (folder / "modules.json").write_text("{")
    with pytest.raises(GgufToolsError, match=r"modules.json"):
        check(file, folder, only=["vectors"])
