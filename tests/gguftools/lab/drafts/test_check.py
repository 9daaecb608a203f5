"""Drafts checked by files: figures beside those of other passes, decoding beside both, and what can't draft."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import gguftools
from gguftools.conversion.options import ConvertOptions
from gguftools.lab.drafts import DraftCheckOptions
from gguftools.lab.drafts.check import draft_check
from gguftools.lab.drafts.costs import bytes_read
from gguftools.measurement.corpus import read_corpus
from gguftools.measurement.texts import texts_named
from quants.errors import ModelError, OptionError
from runtime.kv_cache import KVCache
from runtime.speculation.draft_files import reader_of

from ....archs import checkpoints, drafts
from ...command_line import EXAMPLE, TEXT, typed
from ...tiny_models import edited

GIVEN = {
    "text": TEXT,
    "n_ctx": 64,
    "chunks": 8,
    "threads": 1,
    "options": DraftCheckOptions(lookup=True, temperatures=(0, 0.5, 1), draft_max=4, cost_ratio=0.1, simulated=160),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    base = gguftools.convert(EXAMPLE, folder / "base.gguf", "F16").outputs[0].file
    return base, gguftools.quantize(base, "Q2_K", folder / "small.gguf").outputs[0].file


@pytest.fixture(scope="module")
def report(files):
    return draft_check(*files, **GIVEN)


def test_acceptance_is_that_of_a_divergence(files, report):
    beside = gguftools.divergence(*files, text=TEXT, n_ctx=64, chunks=8).files[0].figures
    model = report.drafts[0]
    assert model.temperatures[2].acceptance == pytest.approx(beside["acceptance"], rel=1e-4)
    assert model.temperatures[0].acceptance["mean"] == model.agreement == pytest.approx(beside["same_top"])


def test_tokens_a_cycle(report):
    """Beside cycles that are followed through the text by draws, at temperature 0; and longer drafts give more."""
    for draft in report.drafts:
        for at in draft.temperatures:
            assert at.tokens_per_cycle == sorted(at.tokens_per_cycle) or draft.kind == "lookup"
            assert len(at.tokens_per_cycle) == len(at.speedup) == len(at.accepted_per_position) == 4
            assert 1 <= at.tokens_per_cycle[0] <= 2
    first = report.drafts[0].temperatures[1]
    assert first.tokens_per_cycle == pytest.approx(first.independent, rel=0.1)
    assert first.speedup == pytest.approx(np.divide(first.tokens_per_cycle, [1.1, 1.2, 1.3, 1.4]).tolist())
    assert first.best_speedup == max(first.speedup)


def test_decoding_is_as_predicted(report):
    """Acceptance within four standard errors of the sum of min(p, q), tokens of a cycle within 10 %."""
    for draft in report.drafts:
        for at in draft.temperatures:
            run = at.simulation
            assert abs(run.acceptance - run.expected_acceptance) <= 4 * run.acceptance_standard_error + 1e-9
            assert run.tokens == pytest.approx(run.tokens_per_cycle * run.cycles)
            assert run.tokens == run.cycles + run.accepted
            assert run.predicted == pytest.approx(run.tokens_per_cycle, rel=0.1)


def test_the_same_seed_writes_the_same(files):
    given = GIVEN | {"chunks": 2}
    chosen = [replace(GIVEN["options"], temperatures=(1,), simulated=40, seed=seed) for seed in (7, 7, 8)]
    one, other, third = (draft_check(*files, **given | {"options": each}).as_dict() for each in chosen)
    assert one == other
    assert one["drafts"][0]["temperatures"] != third["drafts"][0]["temperatures"]


def test_texts_apart(files, tmp_path):
    words = TEXT.read_text(encoding="utf-8")
    for name, part in (("a", words[:3000]), ("b", words[5000:8000])):
        (tmp_path / name).write_text(part, encoding="utf-8")
    both = {"first": tmp_path / "a", "second": tmp_path / "b"}
    given = {"n_ctx": 64, "chunks": 3}
    given["options"] = DraftCheckOptions(temperatures=[1], cost_ratio="bytes", simulated=0, draft_max=2)
    got = draft_check(*files, text=both, **given)
    model = got.drafts[0]
    assert [text.name for text in got.texts] == list(model.temperatures[0].texts) == ["first", "second"]
    for name, path in both.items():
        alone = draft_check(*files, text=path, **given).drafts[0].temperatures[0]
        found = model.temperatures[0].texts[name]
        assert found["acceptance"] == pytest.approx(alone.acceptance, rel=1e-4)
        assert found["tokens_per_cycle"] == pytest.approx(alone.tokens_per_cycle[found["draft_length"] - 1], rel=1e-4)
    sizes = [bytes_read(gguftools.open(file)) for file in files]
    assert model.cost_ratio == model.bytes_ratio == sizes[1] / sizes[0]
    assert got.verify == [1, 1, 1]
    assert got.warnings == []


def test_what_cannot_draft(files, tmp_path):
    """The row says why, the others are measured, and the exit code is 1."""
    base, small = files
    other = edited(small, tmp_path / "other.gguf", {"tokenizer.ggml.bos_token_id": 7})
    tokens = gguftools.open(base).metadata["tokenizer.ggml.tokens"]
    strange = edited(small, tmp_path / "strange.gguf", {"tokenizer.ggml.tokens": [*tokens[:9], "wrong", *tokens[10:]]})
    words = ("-f", TEXT, "-c", 64, "--chunks", 1, "--simulate", 0, "--draft-max", 2, "--temps", "1", "-j", 1)
    done = typed("draft-check", base, other, strange, small, *words)
    assert done.returncode == 1, done.stderr
    assert "other.gguf can NOT draft: BOS is token" in done.stdout
    assert f"set-metadata {other} tokenizer.ggml.bos_token_id=" in done.stdout
    assert "strange.gguf can NOT draft: 1 tokens differ; the first is 9" in done.stdout
    assert sum(line.startswith("small.gguf  ") for line in done.stdout.splitlines()) == 3
    plain = json.loads(typed("draft-check", base, strange, *words, "--json").stdout)
    assert (plain["possible"], plain["best"], plain["drafts"][0]["temperatures"]) == (False, [], [])


def test_damaged_weights(files):
    base, small = files
    broken, name = gguftools.open(small), "blk.1.ffn_down.weight"
    broken.tensors[name] = np.full(broken.tensors[name].shape, np.nan, np.float32)
    given = {"text": TEXT, "n_ctx": 64, "chunks": 1, "threads": 1}
    options = DraftCheckOptions(simulated=0, draft_max=2, lookup=True)
    found = draft_check(base, broken, options=options, **given).drafts
    assert "finite" in found[0].obstacles[0]
    assert [bool(draft.temperatures) for draft in found] == [False, True]
    with pytest.raises(ModelError, match=r"small.gguf can't be measured: .*finite"):
        draft_check(broken, base, **given)


def test_wrong_calls(files, tmp_path):
    base, small = files
    with pytest.raises(OptionError, match="no draft to check"):
        draft_check(base)
    with pytest.raises(OptionError, match="is the model itself"):
        draft_check(base, base)
    with pytest.raises(OptionError, match="is to be checked twice"):
        draft_check(base, small, small)
    with pytest.raises(OptionError, match="the longest draft is 0"):
        draft_check(base, small, options=DraftCheckOptions(draft_max=0))
    with pytest.raises(ModelError, match="no MTP layer"):
        draft_check(base, options=DraftCheckOptions(mtp=True))
    (tmp_path / "short.txt").write_text("Anne")
    done = typed("draft-check", base, small, "-f", tmp_path / "short.txt")
    assert done.returncode == 1
    assert "too short" in done.stderr or "short: " in done.stderr
    assert typed("draft-check", base).returncode == 2


def test_tables(files, tmp_path):
    words = ("-f", TEXT, "-c", 64, "--chunks", 2, "--simulate", 32, "--draft-max", 3, "--temps", "0,1", "-j", 1)
    done = typed("draft-check", *files, "--draft-lookup", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("small.gguf     0  ") == 4
    for each in ("decoding as it ran, seed 1", "tokens a cycle, and the speed-up", "in a row mean", "as timed here"):
        assert each in done.stdout
    short = edited(files[1], tmp_path / "short.gguf", {"llama.context_length": 48})
    done = typed("draft-check", files[0], short, *words, "--markdown")
    assert "| short.gguf | 0 |" in done.stdout
    assert f"warning: {short}: windows of 64 tokens are longer" in done.stderr


def test_the_layer_that_reads_ahead(tmp_path):
    """Its chances beside logits of a whole window, each token's from the state before it and the token itself."""
    checkpoints.build("qwen3-5", tmp_path / "checkpoint")
    path = gguftools.convert(tmp_path / "checkpoint", tmp_path / "m.gguf", "f32").outputs[0].file
    given = {"text": TEXT, "n_ctx": 32, "chunks": 2, "threads": 1}
    (draft,) = draft_check(
        path, options=DraftCheckOptions(temperatures=[1], cost_ratio="bytes", mtp=True, simulated=40), **given
    ).drafts
    model = gguftools.open(path)
    ids = np.array(model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:64]).reshape(2, 32)
    if model.tokenizer.add_bos:
        ids[:, 0] = model.tokenizer.bos
    net = gguftools.load(model, threads=1)
    states = net.lazy_logits(ids)
    size = model.tokenizer.vocab_size
    p, q = (softmax(rows[..., :size]) for rows in (states.float32(), net.mtp_logits(ids, states.x).float32()))
    alike = np.minimum(p[:, 16:31], q[:, 15:30]).sum(axis=2)
    at = draft.temperatures[0]
    assert at.acceptance["mean"] == pytest.approx(alike.mean(), rel=1e-4)
    assert at.tokens_per_cycle == [pytest.approx(1 + alike.mean(), rel=0.05)]
    run = at.simulation
    assert (run.draft_length, run.predicted) == (3, None)
    assert abs(run.acceptance - run.expected_acceptance) <= 4 * run.acceptance_standard_error
    (short,) = draft_check(
        path,
        options=DraftCheckOptions(temperatures=[1], cost_ratio="bytes", mtp=True, simulated=60, draft_max=1),
        **given,
    ).drafts
    run = short.temperatures[0].simulation
    assert run.predicted == pytest.approx(run.tokens_per_cycle, abs=4 * run.standard_error)


def test_files_that_read_states(tmp_path):
    """One of its own layer says what `mtp` does; an EAGLE-3 draft is measured beside it, in the same pass."""
    draft, target = drafts.build("shared", tmp_path)
    gguftools.convert(target, tmp_path / "m.gguf", "f32")
    gguftools.convert(target, tmp_path / "mtp.gguf", "f32", part="mtp")
    gguftools.convert(
        draft, tmp_path / "eagle3.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2")
    )
    given = {"text": TEXT, "n_ctx": 32, "chunks": 2, "threads": 1}
    files = (tmp_path / "mtp.gguf", tmp_path / "eagle3.gguf")
    apart, eagle3, own = draft_check(
        tmp_path / "m.gguf",
        *files,
        options=DraftCheckOptions(temperatures=[1], cost_ratio="bytes", mtp=True, simulated=30),
        **given,
    ).drafts
    assert (apart.kind, eagle3.kind, own.kind) == ("states", "states", "mtp")
    acceptance = [each.temperatures[0].acceptance["mean"] for each in (apart, eagle3, own)]
    assert acceptance[0] == pytest.approx(acceptance[2], rel=1e-5)
    runs = [each.temperatures[0].simulation for each in (apart, eagle3, own)]
    assert runs[0] == runs[2]
    assert abs(runs[1].acceptance - runs[1].expected_acceptance) <= 4 * runs[1].acceptance_standard_error
    model, file = gguftools.load(tmp_path / "m.gguf"), gguftools.open(tmp_path / "eagle3.gguf")
    reader = reader_of(model, file.metadata, file.tensors)
    ids = np.array(gguftools.open(tmp_path / "m.gguf").tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:64])
    alike = []
    for text in ids.reshape(2, 32):
        run, states = model.forward_with_inputs(text, reader.layers)
        q = reader.read(reader.begin(states[:-1]), text[1:].tolist(), None)[0]
        p, q = (softmax(rows.float32()[None]) for rows in (run, q))
        alike += np.minimum(p[0, 16:31], q[0, 15:30]).sum(axis=1).tolist()
    assert acceptance[1] == pytest.approx(np.mean(alike), rel=1e-4)


READ = {"text": TEXT, "n_ctx": 32, "chunks": 1, "threads": 1}
BY_BYTES = DraftCheckOptions(temperatures=[1], cost_ratio="bytes", simulated=30)


def test_drafts_that_write_blocks(tmp_path):
    """What they say first of a block, beside blocks behind beginnings of the texts."""
    names = ("dflash2", "dspark")
    for name in names:
        (tmp_path / name).mkdir()
        draft, target = drafts.build(name, tmp_path / name)
        gguftools.convert(
            draft, tmp_path / f"{name}.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2")
        )
    gguftools.convert(target, tmp_path / "m.gguf", "f32")
    files = [tmp_path / f"{name}.gguf" for name in names]
    found = draft_check(tmp_path / "m.gguf", *files, options=BY_BYTES, **READ).drafts
    model = gguftools.load(tmp_path / "m.gguf")
    text = gguftools.open(tmp_path / "m.gguf").tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:32]
    p = model.forward(text)
    for path, draft in zip(files, found, strict=True):
        assert (draft.kind, draft.obstacles) == ("states", [])
        file, alike = gguftools.open(path), []
        writer = reader_of(model, file.metadata, file.tensors)
        for place in range(16, 31):
            cache = KVCache()
            writer.keep(model.forward_with_inputs(text[:place], writer.layers)[1], cache)
            q = writer.logits(writer.written(writer.block(text[place], 3, cache)), 0, text[place])
            alike.append(np.minimum(*softmax(np.stack([p[place], q])[None])[0]).sum())
        assert draft.temperatures[0].acceptance["mean"] == pytest.approx(np.mean(alike), rel=1e-4)
        run = draft.temperatures[0].simulation
        assert abs(run.acceptance - run.expected_acceptance) <= 4 * run.acceptance_standard_error


def test_an_assistant(tmp_path):
    draft, target = drafts.build("gemma4-assistant", tmp_path)
    gguftools.convert(target, tmp_path / "m.gguf", "f32")
    gguftools.convert(draft, tmp_path / "draft.gguf", "f32")
    (found,) = draft_check(tmp_path / "m.gguf", tmp_path / "draft.gguf", options=BY_BYTES, **READ).drafts
    model, file = gguftools.load(tmp_path / "m.gguf"), gguftools.open(tmp_path / "draft.gguf")
    assistant, alike = reader_of(model, file.metadata, file.tensors), []
    read = read_corpus(gguftools.open(tmp_path / "m.gguf"), texts_named(TEXT), 32, 1, None)
    for window in read.windows:
        text, p = window.inputs.tolist(), model.forward(window.inputs)
        for place in window.scored.tolist():
            cache = model.new_cache()
            state = model.lazy_forward(text[:place], cache).x[-1:]
            q = assistant.read(text[place], state, place, cache)[0].float32()[-1]
            alike.append(np.minimum(*softmax(np.stack([p[place], q])[None])[0]).sum())
    assert found.temperatures[0].acceptance["mean"] == pytest.approx(np.mean(alike), rel=1e-4)
    run = found.temperatures[0].simulation
    assert abs(run.acceptance - run.expected_acceptance) <= 4 * run.acceptance_standard_error


def softmax(rows):
    e = np.exp(rows.astype(np.float64) - rows.max(axis=2, keepdims=True))
    return e / e.sum(axis=2, keepdims=True)


def test_a_draft_with_fewer_tokens(files):
    """The last two have probability 0 there; beside the model itself that is all there is between them."""
    base, short = gguftools.open(files[0]), gguftools.open(files[0])
    count = len(base.metadata["tokenizer.ggml.tokens"]) - 2
    for key in ("tokens", "token_type"):
        short.metadata[f"tokenizer.ggml.{key}"] = list(base.metadata[f"tokenizer.ggml.{key}"])[:count]
    short.metadata["llama.vocab_size"] = count
    short.metadata["tokenizer.ggml.padding_token_id"] = 0
    for name in ("token_embd.weight", "output.weight"):
        if name in short.tensors:
            short.tensors[name] = short.tensors[name].float32()[:count]
    given = {"text": TEXT, "n_ctx": 64, "chunks": 2, "threads": 1}
    for pair in ((base, short), (short, base)):
        (draft,) = draft_check(
            *pair, options=DraftCheckOptions(temperatures=[1], simulated=32, cost_ratio=0.5, draft_max=2), **given
        ).drafts
        assert draft.obstacles == []
        assert 0.999 < draft.temperatures[0].acceptance["mean"] <= 1
        assert draft.temperatures[0].simulation.acceptance > 0.9
