"""Divergence of quantized files from the one they were made of, or from what was stored of it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.divergence_report import exceeded, parse_limits
from gguftools.measurement.options import DivergenceOptions
from gguftools.measurement.perplexity import perplexity
from gguftools.measurement.texts import default_texts
from quants.errors import FileError, OptionError

from ...conftest import ROOT
from ...runtime.evaluation.test_divergence import DATA, as_printed, printed

TEXT = ROOT / "examples" / "persuasion.txt"
AUSTEN = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    names = ("F16", "Q8_0", "Q4_0")
    made = {name: convert(AUSTEN, folder / f"{name}.gguf", name).outputs[0].file for name in names}
    made["Q4_K_M"] = gguftools.quantize(made["F16"], "Q4_K_M", folder / "Q4_K_M.gguf").outputs[0].file
    return made


@pytest.fixture(scope="module")
def report(files):
    return divergence(files["F16"], files["Q8_0"], files["Q4_0"], text=TEXT, n_ctx=128, chunks=4)


def test_fewer_bits_diverge_further(files, report):
    fine, coarse = report.files
    assert 0 < 20 * fine.kl_divergence["mean"] < coarse.kl_divergence["mean"]
    assert fine.figures["same_top"] > coarse.figures["same_top"]
    for file, name in ((fine, "Q8_0"), (coarse, "Q4_0")):
        alone = perplexity(files[name], TEXT, n_ctx=128, chunks=4)
        assert file.figures["perplexity"] == pytest.approx(alone.perplexity, rel=1e-5)
        assert (file.type, file.size) == (name, files[name].stat().st_size)
    assert report.base_perplexity == pytest.approx(perplexity(files["F16"], TEXT, n_ctx=128, chunks=4).perplexity, 1e-5)


def test_plain_data(files, report):
    plain = json.loads(json.dumps(report.as_dict()))
    assert (plain["base"], plain["n_ctx"], len(plain["files"])) == (str(files["F16"]), 128, 2)
    assert plain["texts"] == [{"name": "persuasion", "file": str(TEXT), "windows": 4, "scored": 252}]
    file = plain["files"][1]
    assert file["chunks"][-1] == pytest.approx(file["kl_divergence"]["mean"])
    assert sum(file["histogram"]["counts"]) == 252
    assert file["positions"]["edges"][0] == 64
    assert file["positions"]["edges"][-1] == 127
    assert len(file["positions"]["kl_mean"]) == len(file["positions"]["edges"]) - 1 == 16
    assert sum(file["positions"]["kl_mean"]) / 16 == pytest.approx(file["kl_divergence"]["mean"], rel=0.05)
    assert file["texts"]["persuasion"]["perplexity"] == file["perplexity"]
    worst = file["worst"]
    assert len(worst) == 20
    assert worst[0]["kl"] == file["kl_divergence"]["max"]
    assert [worst[0]["token"], worst[0]["kl"]] in worst[0]["passage"]
    assert worst[0]["before"][-5:] in TEXT.read_text(encoding="utf-8")


def test_where_predictions_diverge_furthest(files, report):
    """Each is found again in the text, in its window and at its position, with what is around it."""
    tokenizer = gguftools.open(files["F16"]).tokenizer
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    for file in report.files:
        kls = [each["kl"] for each in file.worst]
        assert kls == sorted(kls, reverse=True)
        assert len({(each["window"], each["position"]) for each in file.worst}) == 20
        assert {each["window"] for each in file.worst} > {1, 2}
        for each in file.worst:
            window = tokens[128 * each["window"] :][:128]
            place = each["position"]
            assert 64 < place < 128
            assert each["token"] == tokenizer.decode([window[place]])
            assert each["before"].endswith(tokenizer.decode(window[place - 3 : place])[1:])
            begin, end = max(0, place - 20), min(128, place + 20)
            assert [text for text, _ in each["passage"]][1:] == [tokenizer.decode([i]) for i in window[begin:end]][1:]
            assert each["passage"][place - begin][1] == each["kl"]
            assert all(kl == 0 for _, kl in each["passage"][: max(0, 65 - begin)])
            assert 0 < each["p"] < 1
            assert each["p_base"] != each["p"]


def test_texts_have_figures_of_their_own(files, tmp_path):
    halves = TEXT.read_text(encoding="utf-8")
    for name, part in (("a", halves[:4000]), ("b", halves[4000:9000])):
        (tmp_path / name).write_text(part, encoding="utf-8")
    both = {"first": tmp_path / "a", "second": tmp_path / "b"}
    got = divergence(files["F16"], files["Q4_0"], text=both, n_ctx=64, chunks=3)
    assert [(text.name, text.windows) for text in got.texts] == [("first", 3), ("second", 3)]
    for name, path in both.items():
        alone = divergence(files["F16"], files["Q4_0"], text=path, n_ctx=64, chunks=3).files[0]
        kl = got.files[0].texts[name]["kl_divergence"]["mean"]
        assert kl == pytest.approx(alone.kl_divergence["mean"], rel=1e-4)
    assert {each["text"] for each in got.files[0].worst} == {"first", "second"}


def test_answers_alone_are_compared(files, tmp_path):
    """Beside the logits of the whole conversation."""
    turns = [("user", "Is Anne at home?"), ("assistant", "She is walking to Winthrop."), ("user", "Alone?")]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps([{"role": role, "content": content} for role, content in turns]))
    base, other = gguftools.open(files["F16"]), gguftools.open(files["Q4_0"])
    base.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    got = divergence(base, other, text=path, options=DivergenceOptions(chat=True), n_ctx=64).files[0]
    head, answer = "user: Is Anne at home?\nassistant: ", "She is walking to Winthrop."
    ids = base.tokenizer.encode(head + answer)
    begin = next(i for i in range(len(ids)) if not (head + " ").startswith(base.tokenizer.decode(ids[1 : i + 1])))
    rows = [gguftools.load(each).logits(ids)[begin - 1 : -1].astype(np.float64) for each in (base, other)]
    p, q = (row - np.log(np.exp(row).sum(axis=1, keepdims=True)) for row in rows)
    assert got.kl_divergence["mean"] == pytest.approx((np.exp(p) * (p - q)).sum(axis=1).mean(), rel=1e-3)
    assert got.figures["perplexity"] == pytest.approx(np.exp(-q[np.arange(len(q)), ids[begin:]].mean()), rel=1e-4)


def test_without_a_text(files):
    got = divergence(files["F16"], files["Q4_0"], n_ctx=64, chunks=1)
    assert [text.name for text in got.texts] == [text.name for text in default_texts()]
    with pytest.raises(OptionError, match="no conversations of ours"):
        divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(chat=True))


def test_a_base_that_the_reference_wrote(files, tmp_path):
    """The file's own figures within what rounding as the reference does leaves; those of the base to the last digit."""
    base = tmp_path / "base.kld"
    base.write_bytes(gzip.decompress((DATA / "austen-f16.kld.gz").read_bytes()))
    got = divergence(base, files["Q4_K_M"], text=TEXT, options=DivergenceOptions(precision="llama.cpp"))
    want = printed("austen-Q4_K_M.txt")
    assert [got.base_perplexity, got.base_perplexity_standard_error] == pytest.approx(want["Mean PPL(base)"], abs=2e-6)
    ours = as_printed({**got.files[0].figures})
    assert ours["Mean PPL(Q)"] == pytest.approx(want["Mean PPL(Q)"], rel=5e-3)
    # a percentile hangs on a few tokens, whose inputs' rounding to 8 bits can tip over with the last bit of a sum
    for label, tolerance in (("Mean    KLD", 0.1), ("Median  KLD", 0.1), ("90.0%   KLD", 0.2), ("RMS Δp", 0.1)):
        assert ours[label] == pytest.approx(want[label], rel=tolerance), label
    assert ours["Same top p"][0] == pytest.approx(want["Same top p"][0], abs=2)


def test_what_is_saved_is_a_base(files, tmp_path, report):
    base = tmp_path / "base.kld"
    chosen = {"text": TEXT, "n_ctx": 128, "chunks": 4}
    divergence(files["F16"], options=DivergenceOptions(save_base=base), **chosen)
    got = divergence(base, files["Q4_0"])
    assert got.texts[0].windows == 4
    assert got.base_perplexity == pytest.approx(report.base_perplexity, rel=1e-4)
    want = report.files[1].kl_divergence
    assert got.files[0].kl_divergence["mean"] == pytest.approx(want["mean"], rel=1e-2)
    assert got.files[0].kl_divergence["max"] == pytest.approx(want["max"], rel=1e-2)
    with pytest.raises(FileError, match="already exists"):
        divergence(files["F16"], options=DivergenceOptions(save_base=base), **chosen)
    for read in (files["F16"], TEXT):
        with pytest.raises(OptionError, match="is read, so it cannot be written"):
            divergence(files["F16"], options=DivergenceOptions(save_base=read, overwrite=True), **chosen)
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        divergence(base, files["Q4_0"], options=DivergenceOptions(save_base=base, overwrite=True))


def test_bases_that_do_not_fit(files, tmp_path):
    base = tmp_path / "base.kld"
    raw = gzip.decompress((DATA / "austen-f16.kld.gz").read_bytes())
    base.write_bytes(raw)
    other = tmp_path / "other.txt"
    other.write_text("Something else. " * 200, encoding="utf-8")
    with pytest.raises(OptionError, match="stored of another text than"):
        divergence(base, files["Q4_0"], text=other)
    with pytest.raises(OptionError, match="windows of 64 tokens, not 128"):
        divergence(base, files["Q4_0"], n_ctx=128)
    base.write_bytes(gzip.decompress((DATA / "made.kld.gz").read_bytes()))
    with pytest.raises(OptionError, match="a vocabulary of 301 tokens"):
        divergence(base, files["Q4_0"])
    base.write_bytes(raw[:-2])
    with pytest.raises(FileError, match=r"base.kld: stored logits of 4 windows .* take 509940 bytes; found 509938"):
        divergence(base, files["Q4_0"])
    with pytest.raises(OptionError, match="there is nothing to compare"):
        divergence(files["F16"], text=TEXT)


def test_vocabularies_have_to_be_equal(files, tmp_path):
    opened = gguftools.open(files["F16"])
    merges = list(opened.metadata["tokenizer.ggml.merges"])[:100]
    gguftools.set_metadata(files["F16"], {"tokenizer.ggml.merges": merges}, output=tmp_path / "other.gguf")
    with pytest.raises(OptionError, match="make different tokens of"):
        divergence(tmp_path / "other.gguf", files["F16"], text=TEXT, n_ctx=128, chunks=2)
    tokens = list(opened.metadata["tokenizer.ggml.tokens"])
    tokens[700] += "x"
    gguftools.set_metadata(files["F16"], {"tokenizer.ggml.tokens": tokens}, output=tmp_path / "third.gguf")
    with pytest.raises(OptionError, match="token 700 is"):
        divergence(tmp_path / "third.gguf", files["F16"], text=TEXT, n_ctx=128, chunks=2)


def test_limits(report):
    assert parse_limits("mean=0.02, p99_9=1") == {"mean": 0.02, "p99_9": 1.0}
    for wrong in ("", "mean", "mean=", "mean=x", "mean=-1", "mean=nan", "p98=1", "mean=1,"):
        with pytest.raises(OptionError, match="is no limit"):
            parse_limits(wrong)
    limit = report.files[0].kl_divergence["mean"] * 2
    assert parse_limits("max=0") == {"max": 0.0}
    largest = max(file.kl_divergence["mean"] for file in report.files)
    assert exceeded(report, {"mean": largest}) == []
    said = exceeded(report, {"mean": limit})
    assert len(said) == 1
    assert "Q4_0.gguf: mean KL divergence is" in said[0]
