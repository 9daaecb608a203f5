"""Three wrong inputs of each public function: of the wrong type, a file that is missing, an impossible value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools import (
    DivergenceOptions,
    DraftCheckOptions,
    EditOptions,
    EvaluationOptions,
    ExpertOptions,
    GgufToolsError,
    GraftOptions,
    ImatrixOptions,
    PerplexityOptions,
    Provenance,
    QuantizeOptions,
    SearchOptions,
    Selection,
    UploadOptions,
    WriteOptions,
)

from ..conftest import DATA

MODEL = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
MATRIX = DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf"
TEXT = gguftools.example("persuasion.txt")
AUSTEN = "austen.gguf"  # in the folder: with a vocabulary
NONE = "missing.gguf"
Call = Callable[[], Any]
# By function: calls in a folder that has austen.gguf.
CALLS: dict[str, tuple[Call, ...]] = {
    "apply_patch": (
        lambda: gguftools.apply_patch(3, "d.gguf", "o.gguf"),
        lambda: gguftools.apply_patch(MODEL, NONE, "o.gguf"),
        lambda: gguftools.apply_patch(MODEL, MODEL, "o.gguf"),
    ),
    "attest": (
        lambda: gguftools.attest(3, output="a.json"),
        lambda: gguftools.attest(NONE, output="a.json"),
        lambda: gguftools.attest(MODEL, Provenance(recipe="Q3_X"), output="a.json"),
    ),
    "audit": (
        lambda: gguftools.audit(3),
        lambda: gguftools.audit(NONE),
        lambda: gguftools.audit(MODEL, tensors=True, threads=0),
    ),
    "card": (
        lambda: gguftools.card(3),
        lambda: gguftools.card(NONE),
        lambda: gguftools.card(".", options=gguftools.CardOptions(repository="no repository")),
    ),
    "chat": (
        lambda: gguftools.chat(3),
        lambda: gguftools.chat(NONE),
        lambda: gguftools.chat(AUSTEN, temperature="hot"),
    ),
    "chat_template": (
        lambda: gguftools.chat_template(3),
        lambda: gguftools.chat_template(NONE),
        lambda: gguftools.chat_template(MODEL, 3),
    ),
    "check": (
        lambda: gguftools.check(3),
        lambda: gguftools.check(MODEL, NONE),
        lambda: gguftools.check(MODEL, only=["smell"]),
    ),
    "compare_chat_templates": (
        lambda: gguftools.compare_chat_templates(MODEL, 3),
        lambda: gguftools.compare_chat_templates(MODEL, NONE),
        lambda: gguftools.compare_chat_templates(MODEL, MODEL, [["no message"]]),
    ),
    "compare_values": (
        lambda: gguftools.compare_values(AUSTEN, 3, [1]),
        lambda: gguftools.compare_values(AUSTEN, NONE, [1]),
        lambda: gguftools.compare_values(AUSTEN, AUSTEN, [1], tolerance=-1),
    ),
    "convert": (
        lambda: gguftools.convert(3, "o.gguf"),
        lambda: gguftools.convert("missing", "o.gguf"),
        lambda: gguftools.convert(gguftools.example("austen-4m"), "o.gguf", "f17"),
    ),
    "convert_endian": (
        lambda: gguftools.convert_endian(3),
        lambda: gguftools.convert_endian(NONE),
        lambda: gguftools.convert_endian(MODEL, "middle", "o.gguf"),
    ),
    "demo": (
        lambda: gguftools.demo(3),
        lambda: gguftools.demo("missing", output="o"),
        lambda: gguftools.demo(text="missing.txt", output="o"),
    ),
    "diff": (
        lambda: gguftools.diff(MODEL, 3),
        lambda: gguftools.diff(MODEL, NONE),
        lambda: gguftools.diff(MODEL, MODEL, threads="many"),
    ),
    "divergence": (
        lambda: gguftools.divergence(AUSTEN, 3, text=TEXT),
        lambda: gguftools.divergence(AUSTEN, NONE, text=TEXT),
        lambda: gguftools.divergence(AUSTEN, AUSTEN, text=TEXT, n_ctx=1),
        lambda: gguftools.divergence(AUSTEN, MODEL, text=TEXT, options=DivergenceOptions(precision="float8")),
    ),
    "draft_check": (
        lambda: gguftools.draft_check(AUSTEN, 3, text=TEXT),
        lambda: gguftools.draft_check(AUSTEN, NONE, text=TEXT),
        lambda: gguftools.draft_check(AUSTEN, text=TEXT),
        lambda: gguftools.draft_check(AUSTEN, AUSTEN, text=TEXT, options=DraftCheckOptions(temperatures=[-1])),
    ),
    "embed": (
        lambda: gguftools.embed(3, ["a"]),
        lambda: gguftools.embed(NONE, ["a"]),
        lambda: gguftools.embed(AUSTEN, ["a"], pooling="median"),
        lambda: gguftools.embed(AUSTEN, 3),
    ),
    "evaluate": (
        lambda: gguftools.evaluate(3, hellaswag="h.txt"),
        lambda: gguftools.evaluate(AUSTEN, hellaswag="missing.txt"),
        lambda: gguftools.evaluate(AUSTEN),
        lambda: gguftools.evaluate([], hellaswag=TEXT),
        lambda: gguftools.evaluate(AUSTEN, hellaswag=TEXT, options=EvaluationOptions(seed="x")),
    ),
    "example": (
        lambda: gguftools.example(3),
        lambda: gguftools.example("missing.txt"),
        lambda: gguftools.example("../pyproject.toml"),
    ),
    "export": (
        lambda: gguftools.export(3, "o"),
        lambda: gguftools.export(NONE, "o"),
        lambda: gguftools.export(MODEL, "o", outtype="Q8_0"),
    ),
    "fit": (lambda: gguftools.fit(3), lambda: gguftools.fit(NONE), lambda: gguftools.fit(MODEL, context=0)),
    "fetch": (
        lambda: gguftools.fetch(3),
        lambda: gguftools.fetch("org"),
        lambda: gguftools.fetch("org/model", include=[3]),
    ),
    "frontier": (
        lambda: gguftools.frontier(3, [4.0]),
        lambda: gguftools.frontier(NONE, [4.0]),
        lambda: gguftools.frontier(AUSTEN, [-1.0]),
        lambda: gguftools.frontier(AUSTEN, "four"),
    ),
    "generate": (
        lambda: gguftools.generate(AUSTEN, 3),
        lambda: gguftools.generate(NONE, "It"),
        lambda: gguftools.generate(AUSTEN, "It", temprature=1),
        lambda: gguftools.generate(AUSTEN, [10**9], max_tokens=1),
        lambda: gguftools.generate(AUSTEN, ["a"], max_tokens=1),
    ),
    "gpu_split": (
        lambda: gguftools.gpu_split(3, 1),
        lambda: gguftools.gpu_split("missing", 1),
        lambda: gguftools.gpu_split(".", "6G"),
    ),
    "graft": (
        lambda: gguftools.graft(3, "o.gguf"),
        lambda: gguftools.graft(NONE, "o.gguf"),
        lambda: gguftools.graft(MODEL, "o.gguf", drop_layers=[99]),
        lambda: gguftools.graft(MODEL, "o.gguf", 3),
        lambda: gguftools.graft(MODEL, "o.gguf", drop="blk.1", options=GraftOptions(measure=TEXT, n_ctx=0)),
        lambda: gguftools.graft(MODEL, "o.gguf", experts=ExpertOptions(drop=[-1])),
    ),
    "graph": (lambda: gguftools.graph(3), lambda: gguftools.graph(NONE), lambda: gguftools.graph(MATRIX)),
    "hash": (lambda: gguftools.hash(3), lambda: gguftools.hash(NONE), lambda: gguftools.hash(MODEL, ["md5"])),
    "identify": (
        lambda: gguftools.identify(MODEL, 3),
        lambda: gguftools.identify(MODEL, NONE),
        lambda: gguftools.identify(MODEL, MODEL, imatrix=TEXT),
    ),
    "imatrix": (
        lambda: gguftools.imatrix(AUSTEN, 3),
        lambda: gguftools.imatrix(AUSTEN, "missing.txt"),
        lambda: gguftools.imatrix(AUSTEN, TEXT, n_ctx=0),
        lambda: gguftools.imatrix(AUSTEN, TEXT, options=ImatrixOptions(skip_chunks=-1)),
    ),
    "imatrix_info": (
        lambda: gguftools.imatrix_info(3),
        lambda: gguftools.imatrix_info(NONE),
        lambda: gguftools.imatrix_info(MODEL),
    ),
    "load": (
        lambda: gguftools.load(3),
        lambda: gguftools.load(NONE),
        lambda: gguftools.load(MODEL, threads=0),
        lambda: gguftools.load(MATRIX),
    ),
    "make_patch": (
        lambda: gguftools.make_patch(MODEL, 3, "o.gguf"),
        lambda: gguftools.make_patch(MODEL, NONE, "o.gguf"),
        lambda: gguftools.make_patch(MODEL, MODEL, MODEL),
    ),
    "merge": (lambda: gguftools.merge(3), lambda: gguftools.merge(NONE), lambda: gguftools.merge(MODEL, "o.gguf")),
    "merge_imatrices": (
        lambda: gguftools.merge_imatrices(3, "o.gguf"),
        lambda: gguftools.merge_imatrices([NONE], "o.gguf"),
        lambda: gguftools.merge_imatrices([], "o.gguf"),
        lambda: gguftools.merge_imatrices([MATRIX], "o.gguf", min_rows=-1),
    ),
    "node_values": (
        lambda: gguftools.node_values(AUSTEN, 3),
        lambda: gguftools.node_values(NONE, [1]),
        lambda: gguftools.node_values(AUSTEN, [1], precision="float8"),
    ),
    "open": (lambda: gguftools.open(3), lambda: gguftools.open(NONE), lambda: gguftools.open(TEXT)),
    "patch": (
        lambda: gguftools.patch("make", MODEL, 3, "o.gguf"),
        lambda: gguftools.patch("apply", MODEL, NONE, "o.gguf"),
        lambda: gguftools.patch("undo", MODEL, MODEL, "o.gguf"),
        lambda: gguftools.patch("make", MODEL, MODEL, "o.gguf", trust=True),
    ),
    "perplexity": (
        lambda: gguftools.perplexity(AUSTEN, 3),
        lambda: gguftools.perplexity(AUSTEN, "missing.txt"),
        lambda: gguftools.perplexity(AUSTEN, TEXT, n_ctx=-1),
        lambda: gguftools.perplexity(AUSTEN, TEXT, options=PerplexityOptions(precision="float8")),
    ),
    "quantize": (
        lambda: gguftools.quantize(3, "Q8_0", "o.gguf"),
        lambda: gguftools.quantize(NONE, "Q8_0", "o.gguf"),
        lambda: gguftools.quantize(MODEL, "Q3_X", "o.gguf"),
        lambda: gguftools.quantize(MODEL, "Q8_0", "o.gguf", options=QuantizeOptions(prune_layers=["x"])),
        lambda: gguftools.quantize(MODEL, "Q8_0", "o.gguf", write=WriteOptions(threads=0)),
        lambda: gguftools.quantize(MODEL, "Q8_0", "o.gguf", imatrix=NONE),
        lambda: gguftools.quantize(MODEL, "Q8_0", "o.gguf", search=SearchOptions(target_bpw=-1)),
    ),
    "release": (
        lambda: gguftools.release(3, "o"),
        lambda: gguftools.release(NONE, "o"),
        lambda: gguftools.release(AUSTEN, "o"),
        lambda: gguftools.release(MODEL, "o", options=gguftools.ReleaseOptions(ladder="tall")),
    ),
    "report": (
        lambda: gguftools.report(3),
        lambda: gguftools.report("missing.json"),
        lambda: gguftools.report({"files": []}),
    ),
    "reproduce": (
        lambda: gguftools.reproduce(3),
        lambda: gguftools.reproduce(MODEL, NONE),
        lambda: gguftools.reproduce(MODEL, MODEL, compare=Selection(sample=-1)),
    ),
    "schema": (lambda: gguftools.schema(3), lambda: gguftools.schema("fine-tune"), lambda: gguftools.schema("report")),
    "set_metadata": (
        lambda: gguftools.set_metadata(MODEL, 3),
        lambda: gguftools.set_metadata(NONE, {"general.name": "x"}),
        lambda: gguftools.set_metadata(MODEL, {"llama.block_count": "two"}),
        lambda: gguftools.set_metadata(MODEL, {}, options=EditOptions(reserve=-1)),
    ),
    "show": (lambda: gguftools.show(3), lambda: gguftools.show(NONE), lambda: gguftools.show(MODEL, tensors="(")),
    "split": (
        lambda: gguftools.split(3),
        lambda: gguftools.split(NONE),
        lambda: gguftools.split(MODEL, "o", max_tensors=0),
    ),
    "tokenize": (
        lambda: gguftools.tokenize(AUSTEN, 3),
        lambda: gguftools.tokenize(NONE, "a"),
        lambda: gguftools.tokenize(MATRIX, "a"),
    ),
    "upload": (
        lambda: gguftools.upload(3, "org/model"),
        lambda: gguftools.upload("missing", "org/model"),
        lambda: gguftools.upload(".", "model"),
        lambda: gguftools.upload(".", "org/model", UploadOptions(revision="a", create_pr=True)),
        lambda: gguftools.upload(".", "org/model", {"private": True}),
    ),
    "validate": (
        lambda: gguftools.validate(3),
        lambda: gguftools.validate(None),
        lambda: gguftools.validate(MODEL, threads=0),
        lambda: gguftools.validate(MODEL, reader="forge"),
    ),
    "verify_attestation": (
        lambda: gguftools.verify_attestation(3),
        lambda: gguftools.verify_attestation(NONE),
        lambda: gguftools.verify_attestation(MODEL, TEXT),
    ),
    "weight_errors": (
        lambda: gguftools.weight_errors(MODEL, 3),
        lambda: gguftools.weight_errors(MODEL, NONE),
        lambda: gguftools.weight_errors(MODEL, MODEL, sort="best"),
    ),
}
WITHOUT_ARGUMENTS = {"architectures", "formats"}


def test_every_public_function_is_here() -> None:
    functions = {name for name in gguftools.__all__ if inspect.isfunction(getattr(gguftools, name))}
    assert set(CALLS) == functions - WITHOUT_ARGUMENTS
    assert min(map(len, CALLS.values())) >= 3


@pytest.fixture(scope="module")
def austen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("austen") / AUSTEN
    gguftools.convert(gguftools.example("austen-4m"), path, "q8_0")
    return path


@pytest.mark.parametrize("name", CALLS)
def test_wrong_input_is_one_line(name: str, austen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(AUSTEN).symlink_to(austen)
    for number, call in enumerate(CALLS[name]):
        with pytest.raises(GgufToolsError) as caught:
            call()
        message = str(caught.value)
        assert len(message) > 10, (number, message)
        assert "\n" not in message, (number, message)
        assert [path.name for path in tmp_path.iterdir()] == [AUSTEN], number
