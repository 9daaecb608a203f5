"""Record vectors of texts by transformers and llama.cpp: python -m tests.verify.embeddings > FILE.

FILE is tests/data/embeddings.json. Needs torch, transformers and llama-cpp-python (extra `verify`). Of entries of the
zoo: the mean, the first and the last of the last hidden states, normalized as sentence-transformers does; of some with
a classifier's head of seeded numbers, the logits of pairs of texts. llama.cpp is told the tokens of transformers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import gguftools

from .. import zoo_build
from ..gguftools.tiny_models import edited
from ..zoo import ZOO

ENTRIES = ("bert", "roberta", "distilbert", "modernbert", "qwen3", "t5", "falcon-h1")
TEXTS = ("It is a truth universally acknowledged.", "short", "Ünïcode, 日本語 and 12345", "other", "a  b\nc")
PAIRS = (("what is a panda", "The giant panda is a bear."), ("hello", "no"))
HEADS = {  # entry → (class, its head's two matrices, what the names of the model's tensors begin with)
    "bert": ("BertForSequenceClassification", "bert.pooler.dense", "classifier", "bert."),
    "distilbert": ("DistilBertForSequenceClassification", "pre_classifier", "classifier", "distilbert."),
    "roberta": ("RobertaForSequenceClassification", "classifier.dense", "classifier.out_proj", "roberta."),
    "modernbert": ("ModernBertForSequenceClassification", "head.dense", "classifier", "model."),
}
DECODERS = {"llama3-gqa-rope-tied": "LlamaForSequenceClassification", "gpt2": "GPT2ForSequenceClassification"}
WAYS = ("mean", "cls", "last")


def with_head(folder: Path, entry: str) -> None:
    """Make a checkpoint of the zoo one of a classifier of one label."""
    name, dense, output, prefix = HEADS[entry]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": [name], "id2label": {"0": "score"}, "label2id": {"score": 0}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    random, width = np.random.default_rng(1), int(config.get("hidden_size") or config["dim"])
    tensors = {prefix + key: value for key, value in load_file(folder / "model.safetensors").items()}
    tensors[f"{dense}.weight"] = random.standard_normal((width, width)).astype(np.float32) / 8
    tensors[f"{output}.weight"] = random.standard_normal((1, width)).astype(np.float32) / 8
    tensors[f"{output}.bias"] = np.array([0.25], np.float32)
    if entry != "modernbert":
        tensors[f"{dense}.bias"] = random.standard_normal(width).astype(np.float32) / 8
    else:
        tensors["head.norm.weight"] = 1 + random.standard_normal(width).astype(np.float32) / 8
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def scoring(entry: str, folder: Path) -> Path:
    """A decoder of the zoo as a classifier of three labels."""
    zoo_build.build(ZOO, entry, folder / entry)
    config = json.loads((folder / entry / "config.json").read_text(encoding="utf-8"))
    names = {str(i): name for i, name in enumerate(("bad", "fair", "good"))}
    config |= {"architectures": [DECODERS[entry]], "id2label": names, "label2id": {n: int(i) for i, n in names.items()}}
    (folder / entry / "config.json").write_text(json.dumps(config), encoding="utf-8")
    head = np.random.default_rng(2).standard_normal((3, config.get("hidden_size") or config["n_embd"])) / 8
    parts = [folder / entry / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    (folder / entry / "model.safetensors").rename(parts[0])
    save_file({"score.weight": head.astype(np.float32)}, parts[1], {"format": "pt"})
    with safe_open(parts[0], "np") as file:
        places = dict.fromkeys(file.keys(), parts[0].name) | {"score.weight": parts[1].name}
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / entry / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder / entry


def made(entry: str, folder: Path, head: bool) -> Path:
    """A checkpoint, converted."""
    zoo_build.build(ZOO, entry, folder / "checkpoint")
    if head:
        with_head(folder / "checkpoint", entry)
    gguftools.convert(folder / "checkpoint", folder / "f32.gguf", "f32")
    return folder / "f32.gguf"


def reranker(folder: Path) -> Path:
    """A file like those of Qwen3's rerankers: two rows of the head, a template, probabilities."""
    plain = made("qwen3", folder, head=False)
    template = "<|im_start|>Query: {query} Document: {document}<|im_end|>"
    keys = {"qwen3.pooling_type": np.uint32(4), "qwen3.classifier.output_labels": ["yes", "no"]}
    head = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32) / 4
    keys |= {"tokenizer.chat_template.rerank": template}
    return edited(plain, folder / "reranker.gguf", keys, {"cls.output.weight": head})


def _transformers(folder: Path) -> Iterator[dict[str, Any]]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    model = model.encoder if model.config.is_encoder_decoder else model
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0].numpy().astype(np.float64)
        vectors = zip(WAYS, (states.mean(axis=0), states[0], states[-1]), strict=True)
        yield {"ids": ids} | {name: _rounded(each / np.linalg.norm(each)) for name, each in vectors}


def _scores(folder: Path, texts: Sequence[Any] = PAIRS) -> Iterator[dict[str, Any]]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(str(folder), dtype=torch.float32).eval()
    for text in texts:
        ids = (tokenizer(text) if isinstance(text, str) else tokenizer(*text))["input_ids"]
        with torch.no_grad():
            yield {"ids": ids, "score": _rounded(model(torch.tensor([ids])).logits[0].numpy())}


def _llama_cpp(file: Path, texts: list[list[int]], way: int) -> list[list[float]] | None:
    """Pooled vectors that are not normalized; None where llama.cpp can't load the model."""
    import llama_cpp as library

    options = library.llama_model_default_params()
    options.use_extra_bufts = False
    model = library.llama_model_load_from_file(str(file).encode(), options)
    if not model or (library.llama_model_has_decoder(model) and library.llama_model_has_encoder(model)):
        return None
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 128
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = settings.flash_attn_type = 0  # F32, and exact
    settings.embeddings, settings.pooling_type = True, way
    found = []
    for ids in texts:
        context = library.llama_init_from_model(model, settings)
        batch = library.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
        assert library.llama_decode(context, batch) == 0
        rank = way == library.LLAMA_POOLING_TYPE_RANK
        width = library.llama_model_n_cls_out(model) if rank else library.llama_model_n_embd(model)
        found.append(_rounded(np.ctypeslib.as_array(library.llama_get_embeddings_seq(context, 0), shape=(width,))))
        library.llama_batch_free(batch)
        library.llama_free(context)
    return found


def _rounded(values: Any) -> list[float]:
    return [round(float(each), 7) for each in values]


def main() -> None:
    recorded: dict[str, Any] = {"texts": TEXTS, "pairs": PAIRS, "vectors": {}, "scores": {}}
    for what, entries, run, way in (("vectors", ENTRIES, _transformers, 1), ("scores", HEADS, _scores, 4)):
        for entry in entries:
            with tempfile.TemporaryDirectory() as folder:
                file = made(entry, Path(folder), head=what == "scores")
                rows = list(run(file.parent / "checkpoint"))
                theirs = _llama_cpp(file, [row["ids"] for row in rows], way)
                recorded[what][entry] = {"transformers": rows, "llama.cpp": theirs}
    recorded["decoders"] = {}
    for entry in DECODERS:
        with tempfile.TemporaryDirectory() as folder:
            recorded["decoders"][entry] = list(_scores(scoring(entry, Path(folder)), TEXTS))
    with tempfile.TemporaryDirectory() as folder:
        file = reranker(Path(folder))
        model = gguftools.open(file)
        template = model.metadata["tokenizer.chat_template.rerank"]
        texts = [template.replace("{query}", query).replace("{document}", document) for query, document in PAIRS]
        ids = [model.tokenizer.encode(text, parse_special=True) for text in texts]
        recorded["reranker"] = {"ids": ids, "llama.cpp": _llama_cpp(file, ids, way=4)}
    print(json.dumps(recorded, ensure_ascii=False))


if __name__ == "__main__":
    main()
