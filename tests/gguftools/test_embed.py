"""`embed`: vectors of texts beside transformers' and llama.cpp's; scores of pairs; what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from gguftools.conversion.options import ConvertOptions
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import GgufToolsError, ModelError, OptionError
from runtime.evaluation.pooling import dense_layers, normalized, pooled

from ..archs import checkpoints
from ..conftest import DATA
from ..verify.embeddings import DECODERS, HEADS, WAYS, made, reranker, scoring
from .command_line import refused, run, typed
from .tiny_models import edited

RECORDED = json.loads((DATA / "embeddings.json").read_text(encoding="utf-8"))
TEXTS: list[str] = RECORDED["texts"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return made("bert", tmp_path_factory.mktemp("bert"), head=False)


@pytest.mark.parametrize("entry", RECORDED["vectors"])
def test_vectors_are_transformers_and_llama_cpps(entry: str, tmp_path: Path, shared: Path):
    model = gguftools.open(made(entry, tmp_path, head=False))
    wanted = RECORDED["vectors"][entry]
    for way in WAYS:
        found = model.embed(TEXTS, pooling=way)
        assert found.tokens == [len(each["ids"]) for each in wanted["transformers"]]
        assert found.vectors == pytest.approx(np.array([each[way] for each in wanted["transformers"]]), abs=5e-5)
        assert np.linalg.norm(found.vectors, axis=1) == pytest.approx(1)
    if wanted["llama.cpp"] is not None:  # whose GELU is a table of float16
        plain = model.embed(TEXTS, pooling="mean", normalize=-1).vectors
        assert plain == pytest.approx(np.array(wanted["llama.cpp"]), abs=3e-3)


@pytest.mark.parametrize("entry", HEADS)
def test_scores_are_transformers_and_llama_cpps(entry: str, tmp_path: Path, shared: Path):
    file = made(entry, tmp_path, head=True)
    plain = edited(file, tmp_path / "plain.gguf", {"tokenizer.ggml.add_sep_token": False})  # as the zoo's tokenizer
    found = gguftools.open(plain).embed([tuple(each) for each in RECORDED["pairs"]], pooling="rank")
    wanted = RECORDED["scores"][entry]
    assert found.tokens == [len(each["ids"]) for each in wanted["transformers"]]
    assert found.vectors == pytest.approx(np.array([each["score"] for each in wanted["transformers"]]), abs=5e-5)
    if entry != "distilbert":  # of whose head llama.cpp makes a tanh of the ReLU
        assert found.vectors == pytest.approx(np.array(wanted["llama.cpp"]), abs=2e-3)
    assert found.labels == ("score",)


@pytest.mark.parametrize("entry", DECODERS)
def test_scores_of_decoders_are_transformers(entry: str, tmp_path: Path, shared: Path):
    checkpoint = scoring(entry, tmp_path)
    gguftools.convert(checkpoint, tmp_path / "f32.gguf", "f32")
    found = gguftools.open(tmp_path / "f32.gguf").embed(TEXTS)
    wanted = RECORDED["decoders"][entry]
    assert (found.pooling, found.labels) == ("rank", ("bad", "fair", "good"))
    assert found.tokens == [len(each["ids"]) for each in wanted]
    assert found.vectors == pytest.approx(np.array([each["score"] for each in wanted]), abs=3e-4)
    table = typed("embed", tmp_path / "f32.gguf", "-p", "short").stdout.splitlines()
    assert table[0].split() == ["text", "tokens", "bad", "fair", "good"]
    assert "llama.cpp loads no " in typed("validate", tmp_path / "f32.gguf").stdout
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps(config | {"id2label": {"0": "good"}}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"has 3 rows; config.json has 1 labels"):
        gguftools.convert(checkpoint, tmp_path / "other.gguf", "f32")


def test_a_reranker_gives_llama_cpps_probabilities(tmp_path: Path, shared: Path):
    found = gguftools.open(reranker(tmp_path)).embed([tuple(each) for each in RECORDED["pairs"]])
    wanted = RECORDED["reranker"]
    assert (found.pooling, found.normalize, found.labels) == ("rank", -1, ("yes", "no"))
    assert found.tokens == [len(ids) for ids in wanted["ids"]]
    assert found.vectors == pytest.approx(np.array(wanted["llama.cpp"]), abs=1e-4)


def test_pooling_is_the_files(bert: Path, tmp_path: Path):
    found = gguftools.open(bert).embed(["a text", "b"])
    assert (found.pooling, found.tokens) == ("none", [6, 3])
    assert found.vectors.shape == (9, 64)
    assert found.of(1) == pytest.approx(found.vectors[6:])
    assert "does not say how to pool" in found.warnings[0]
    for number, way in enumerate(("none", "mean", "cls", "last")):
        model = gguftools.open(edited(bert, tmp_path / f"{way}.gguf", {"bert.pooling_type": np.uint32(number)}))
        found = model.embed("a text")
        assert (found.pooling, found.warnings) == (way, ())
        assert np.array_equal(found.vectors, model.embed("a text", pooling=way).vectors)


@pytest.mark.parametrize(
    ("norm", "wanted"), [(-1, [3, -4]), (0, [24570, -32760]), (1, [3 / 7, -4 / 7]), (2, [0.6, -0.8])]
)
def test_norms_are_llama_embeddings(norm: int, wanted: list[float]):
    rows = normalized(np.array([[3, -4], [0, 0]], np.float32), norm)
    assert rows[0] == pytest.approx(wanted)
    assert not rows[1].any()


def test_equally_long_texts_together_are_as_alone(bert: Path):
    model = gguftools.open(bert)
    texts = ["other", "short", "a longer text", "Short"]
    together = model.embed(texts, pooling="cls").vectors
    for text, vector in zip(texts, together, strict=True):
        assert model.embed(text, pooling="cls").vectors[0] == pytest.approx(vector, abs=5e-5)


def test_a_pair_is_read_as_two_texts(bert: Path, tmp_path: Path):
    head = {"cls.output.weight": np.eye(1, 64, dtype=np.float32)}
    model = gguftools.open(edited(bert, tmp_path / "head.gguf", {}, head))
    query, document = (model.embed(text, pooling="mean").tokens[0] for text in ("a text", "b"))
    assert model.embed([("a text", "b")], pooling="rank").tokens == [query + document - 1]  # [CLS] … [SEP] … [SEP]
    template = {"tokenizer.chat_template.rerank": "{query} or {document}"}
    model = gguftools.open(edited(bert, tmp_path / "template.gguf", template, head))
    assert model.embed([("a text", "b")], pooling="rank").tokens == model.embed("a text or b", pooling="cls").tokens


def test_what_is_too_long(bert: Path):
    model, long = gguftools.open(bert), "word " * 200
    with pytest.raises(OptionError, match=r"text 2 has \d+ tokens; the model has positions for 128"):
        model.embed(["short", long], pooling="cls")
    found = model.embed(["short", long], pooling="last", truncate=True)
    assert (found.tokens[1], found.truncated) == (128, (1,))
    assert found.warnings == ("the end of text 2 was left out",)
    end = model.tokenizer.encode("word " * 200, add_special=False)[: 128 - 2]
    whole = gguftools.load(model).hidden_states([[model.tokenizer.bos, *end, model.tokenizer.eos]])[0, -1]
    assert found.vectors[1] == pytest.approx(whole / np.linalg.norm(whole), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"pooling": "max"}, OptionError, "'max' is no way of pooling"),
        ({"pooling": "rank"}, ModelError, "no classifier's head"),
        ({"pooling": "cls", "normalize": -2}, OptionError, "normalize is -2"),
    ],
)
def test_what_is_refused(options: dict[str, Any], kind: type[Exception], said: str, bert: Path):
    with pytest.raises(kind, match=said):
        gguftools.open(bert).embed("a", **options)


def test_no_text(bert: Path, tmp_path: Path):
    with pytest.raises(OptionError, match="no texts"):
        gguftools.open(bert).embed([])
    bare = edited(bert, tmp_path / "bare.gguf", {"tokenizer.huggingface.post_processor": "null"})
    with pytest.raises(OptionError, match="text 1 has no tokens"):
        gguftools.open(bare).embed("")


def test_command(bert: Path, tmp_path: Path):
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\nanother\n", encoding="utf-8")
    wanted = gguftools.open(bert).embed(["one text", "another"], pooling="mean").vectors
    for name in ("v.npy", "v.json"):
        done = typed("embed", bert, "--prompts", texts, "--pooling", "mean", "-o", tmp_path / name)
        assert done.stdout == f"{tmp_path / name}: 2 vectors of 64, pooled by mean\n", done.stderr
    assert np.array_equal(np.load(tmp_path / "v.npy"), wanted)
    assert json.loads((tmp_path / "v.json").read_text())["texts"][1]["embedding"] == wanted[1].tolist()
    said = json.loads(typed("embed", bert, "-p", "one text", "-p", "another", "--pooling", "mean", "--json").stdout)
    assert [each["embedding"] for each in said["texts"]] == wanted.tolist()
    table = run("embed", bert, "--pooling", "mean", cwd=tmp_path, stdin="one text\n\nanother\n").stdout.splitlines()
    assert table[0].split() == ["text", "tokens", "0", "1", "2", "3"]
    assert table[-1].split() == ["2", f"{wanted[0] @ wanted[1]:.4f}", "1.0000"]


def test_command_refuses(bert: Path, tmp_path: Path):
    refused(typed("embed", bert, "-p", "a", "-o", tmp_path / "v.bin"), "neither a .npy nor a .json file")
    refused(typed("embed", bert, "-p", "a b", "--pooling", "rank"), "text 1 has no tab", "QUERY, a tab, DOCUMENT")
    messages = tmp_path / "m.jsonl"
    messages.write_text('{"messages": [{"role": "user", "content": "a"}]}')
    refused(typed("embed", bert, "--prompts", messages), "has messages")
    refused(typed("embed", bert, "-p", "word " * 300, "--pooling", "cls"), "--truncate")


def test_a_decoder_that_embeds_ends_texts_with_a_token_of_its_own(tmp_path: Path, shared: Path):
    """Qwen3-Embedding's checkpoints: the last token's state, that token being one that the tokenizer puts there."""
    checkpoint = made("qwen3", tmp_path, head=False).parent / "checkpoint"
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    end, text = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [495], "tokens": ["<|endoftext|>"]}}
    pair = [text, end, {"Sequence": {"id": "B", "type_id": 1}}, end]
    tokenizer["post_processor"] = {
        "type": "Sequence",
        "processors": [
            tokenizer["post_processor"],
            {"type": "TemplateProcessing", "single": [text, end], "pair": pair, "special_tokens": special},
        ],
    }
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    gguftools.convert(checkpoint, tmp_path / "embedder.gguf", "f32")
    model = gguftools.open(tmp_path / "embedder.gguf")
    found = model.embed("a text")
    ids = [*model.tokenizer.encode("a text", add_special=False), 495]
    assert (found.pooling, found.tokens, found.warnings) == ("last", [len(ids)], ())
    state = gguftools.load(model).hidden_states([ids])[0, -1]
    assert found.vectors[0] == pytest.approx(state / np.linalg.norm(state), abs=1e-6)
    report = gguftools.check(model, checkpoint, only=["token ids", "special tokens", "vectors"])
    assert report.ok, [(each.name, each.seen) for each in report.checks]
    assert report["vectors"].figures["pooling"] == "last"
    assert report["vectors"].lines == ()


def test_matrices_behind_the_pooling_are_not_lost_in_silence(tmp_path: Path):
    checkpoints.build("gemma-embedding", tmp_path / "checkpoint")
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Dense", "Normalize")]
    (tmp_path / "checkpoint" / "modules.json").write_text(json.dumps(modules))
    report = gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    assert [each for each in report.warnings if each.startswith("the matrices of Dense are not in this file")]


def with_dense_modules(folder: Path, widths: tuple[int, int], **config: Any) -> list[np.ndarray]:
    """Put EmbeddingGemma's two modules beside a checkpoint; their matrices."""
    matrices = []
    for number, (rows, width) in enumerate((widths, widths[::-1])):
        name = f"{2 + number}_Dense"
        (folder / name).mkdir()
        matrices.append(np.random.default_rng(number).standard_normal((rows, width)).astype(np.float32))
        save_file({"linear.weight": matrices[-1]}, folder / name / "model.safetensors")
        own = {
            "in_features": width,
            "out_features": rows,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (folder / name / "config.json").write_text(json.dumps(own | config))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    modules.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return matrices


def test_dense_modules_stand_behind_the_pooling(tmp_path: Path):
    """As sentence-transformers computes: mean, both matrices, norm."""
    folder = tmp_path / "checkpoint"
    checkpoints.build("gemma-embedding", folder)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    first, second = with_dense_modules(folder, (3 * width, width))
    report = gguftools.convert(
        folder, tmp_path / "f32.gguf", "f32", options=ConvertOptions(sentence_transformers_dense_modules=True)
    )
    assert not [each for each in report.warnings if "Dense" in each]
    model = gguftools.open(tmp_path / "f32.gguf")
    keys = [model.metadata[f"gemma-embedding.dense_{each}"] for each in ("2_feat_in", "2_feat_out", "3_feat_in")]
    assert keys == [width, 3 * width, 3 * width]
    assert gguftools.validate(model).ok
    text = [5, 9, 13, 40]
    states = gguftools.load(model).hidden_states([text])[0]
    wanted = states.mean(axis=0) @ first.T @ second.T
    found = dense_layers(gguftools.load(model), pooled(gguftools.load(model), states[None], "mean"))[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    vector = model.embed("a text").vectors[0]
    plain = gguftools.convert(folder, tmp_path / "plain.gguf", "f32") and gguftools.open(tmp_path / "plain.gguf")
    wanted = plain.embed("a text", normalize=-1).vectors[0] @ first.T @ second.T
    np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), rtol=0, atol=1e-5)


def test_dense_module_of_colbert(tmp_path: Path):
    """A vector for each token, narrower than the model."""
    folder = tmp_path / "checkpoint"
    checkpoints.build("lfm2-bidirectional", folder)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    first, _ = with_dense_modules(folder, (8, width))
    modules = [{"type": "pylate.models.Dense.Dense", "path": "2_Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    report = gguftools.convert(
        folder, tmp_path / "f32.gguf", "f32", options=ConvertOptions(sentence_transformers_dense_modules=True)
    )
    model = gguftools.open(tmp_path / "f32.gguf")
    assert (model.metadata["lfm2.embedding_length_out"], model.tensors["dense_2.weight"].shape) == (8, (8, width))
    assert gguftools.validate(model).ok
    assert not [each for each in report.warnings if "Dense" in each]
    plain = gguftools.convert(folder, tmp_path / "plain.gguf", "f32") and gguftools.open(tmp_path / "plain.gguf")
    wanted = plain.embed("a text", pooling="none", normalize=-1).vectors @ first.T
    found = model.embed("a text", pooling="none", normalize=-1).vectors
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    modules.append({"type": "pylate.models.Dense.Dense", "path": "3_Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="has 2 Dense modules; files of lfm2 hold 1"):
        gguftools.convert(
            folder, tmp_path / "no.gguf", options=ConvertOptions(sentence_transformers_dense_modules=True)
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "files cannot express the activation"),
        ({"out_features": 7}, "7 rows of 32 were expected"),
    ],
)
def test_dense_modules_that_files_cannot_hold(tmp_path: Path, config: dict[str, Any], message: str):
    folder = tmp_path / "checkpoint"
    checkpoints.build("gemma-embedding", folder)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    with_dense_modules(folder, (width, width), **config)
    with pytest.raises(GgufToolsError, match=message.replace("32", str(width))):
        gguftools.convert(
            folder, tmp_path / "out.gguf", options=ConvertOptions(sentence_transformers_dense_modules=True)
        )
    assert not (tmp_path / "out.gguf").exists()


def test_dense_modules_that_are_not_there(tmp_path: Path):
    checkpoints.build("gemma-embedding", tmp_path / "checkpoint")
    with pytest.raises(GgufToolsError, match=r"has no Dense modules in its modules.json"):
        gguftools.convert(
            tmp_path / "checkpoint",
            tmp_path / "f32.gguf",
            options=ConvertOptions(sentence_transformers_dense_modules=True),
        )


def test_jina_v3_as_it_was_published(tmp_path: Path):
    """Weights are parametrized, with an adapter for each task: vectors are the base model's, and that is said."""
    plain, folder = tmp_path / "plain", tmp_path / "published"
    checkpoints.build("jina-v3", plain)
    checkpoints.build("jina-v3", folder)
    config = json.loads((folder / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    tasks = ["retrieval.query", "text-matching"]
    config |= {
        "architectures": ["XLMRobertaModel"],
        "model_type": "xlm-roberta",
        "lora_adaptations": tasks,
        "rotary_emb_base": theta,
        "position_embedding_type": "rotary",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in open_safetensors(folder / "model.safetensors").items():
        values = tensor.float32()
        if not name.endswith("Wqkv.weight"):
            tensors[f"roberta.{name}"] = values
            continue
        start = f"roberta.{name.removesuffix('weight')}parametrizations.weight."
        tensors[f"{start}original"] = values
        random = np.random.default_rng(1)
        for letter, shape in (("A", (2, 4, values.shape[1])), ("B", (2, values.shape[0], 4))):
            tensors[f"{start}0.lora_{letter}"] = random.normal(0, 0.3, shape).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    report = gguftools.convert(folder, tmp_path / "published.gguf", "f32")
    assert report.warnings[-1].endswith("(`task` writes those of a task)")
    assert report.warnings[-1].startswith("the adapters for tasks (retrieval.query, text-matching) are not in this")
    gguftools.convert(plain, tmp_path / "plain.gguf", "f32")
    found, wanted = (gguftools.open(tmp_path / f"{name}.gguf").embed(TEXTS).vectors for name in ("published", "plain"))
    np.testing.assert_array_equal(found, wanted)


def test_weights_of_one_task(tmp_path: Path) -> None:
    """As the published code adds them: alpha / rank times B·A, of embeddings A·B."""
    checkpoints.build("jina-v3", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    said = {
        "lora_adaptations": ["classification", "retrieval.query"],
        "lora_alpha": 3,
        "task_instructions": {"retrieval.query": "Represent: "},
    }
    merged, parted, random = {}, {}, np.random.default_rng(2)
    for name, tensor in open_safetensors(tmp_path / "plain" / "model.safetensors").items():
        values = tensor.float32()
        merged[name] = parted[name] = values
        if values.ndim < 2:
            continue
        rows, width = values.shape
        embedding = "embeddings" in name
        shapes = [(2, rows, 4), (2, 4, width)] if embedding else [(2, 4, width), (2, rows, 4)]
        a, b = (random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes)
        merged[name] = values + np.float32(0.75) * (a[1] @ b[1] if embedding else b[1] @ a[1])
        start = f"{name.removesuffix('weight')}parametrizations.weight."
        parted |= {f"{start}original": parted.pop(name), f"{start}0.lora_A": a, f"{start}0.lora_B": b}
    for name, tensors, more in (("merged", merged, {}), ("parted", parted, said)):
        shutil.copytree(tmp_path / "plain", tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, tmp_path / name / "model.safetensors")
    gguftools.convert(tmp_path / "merged", tmp_path / "merged.gguf", "f32")
    report = gguftools.convert(
        tmp_path / "parted", tmp_path / "own.gguf", "f32", options=ConvertOptions(task="retrieval.query")
    )
    assert report.warnings == ["texts of this task begin with 'Represent: '"]
    wanted, found = (gguftools.open(tmp_path / f"{name}.gguf").tensors for name in ("merged", "own"))
    for name, tensor in wanted.items():
        np.testing.assert_allclose(found[name].float32(), tensor.float32(), atol=1e-6, err_msg=name)
    with pytest.raises(OptionError, match=r"'retrieval\.qery' is no task of the checkpoint") as caught:
        gguftools.convert(
            tmp_path / "parted", tmp_path / "no.gguf", "f32", options=ConvertOptions(task="retrieval.qery")
        )
    assert "retrieval.query" in (caught.value.hint or "")
    with pytest.raises(OptionError, match="has no weights for tasks"):
        gguftools.convert(
            tmp_path / "merged", tmp_path / "no.gguf", "f32", options=ConvertOptions(task="retrieval.query")
        )
