"""What `generate`, `tokenize` and `chat-template` say, beside llama.cpp's and transformers' greedy texts."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.cli import interruption
from gguftools.cli.streaming import stream
from gguftools.io.gguf.reader import open_gguf
from quants.errors import ModelError, OptionError, VocabularyError
from runtime import prefill
from runtime.generation import Generation
from runtime.kv_cache import CacheType
from runtime.sampling.parameters import Sampling

from .. import zoo_build
from ..conftest import DATA
from ..zoo import ZOO
from .command_line import EXAMPLE, typed

GREEDY = Sampling(temperature=0, ignore_eos=True)
TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"


def recorded(name: str) -> list[Any]:
    return [json.loads(line) for line in (DATA / "generation" / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("generate") / "austen.gguf"
    gguftools.convert(EXAMPLE, file, "f32")
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> gguftools.Model:
    return gguftools.open(path)


@pytest.mark.parametrize("text", recorded("austen-4m"), ids=lambda each: each["prompt"])
def test_greedy_text_is_llama_cpps(model: gguftools.Model, text: dict[str, Any]):
    generation = model.generate(text["prompt"], GREEDY, max_tokens=len(text["ids"]))
    assert generation.prompt == text["prompt_ids"]
    pieces = list(generation)
    assert generation.tokens == text["ids"]
    assert list(model.tokenizer.end_ids) == text["end_ids"]
    assert [piece.token for piece in pieces if piece.token is not None] == text["ids"]
    assert "".join(piece.text for piece in pieces) == generation.text
    assert generation.stop_reason == "length"


@pytest.mark.parametrize("entry", recorded("zoo"), ids=lambda each: each["entry"])
def test_greedy_text_is_transformers(
    entry: dict[str, Any], tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefill, "CHUNK", 5)  # the prompt in pieces, as a long one is read
    zoo_build.build(ZOO, entry["entry"], tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    sampling = Sampling(temperature=0)
    generation = gguftools.open(tmp_path / "f32.gguf").generate(
        entry["prompt_ids"], sampling, max_tokens=len(entry["ids"])
    )
    while generation.stop_reason != "length":  # go on where random weights end a text
        generation.sampler.end_ids = frozenset()
        list(generation)
    assert generation.tokens == entry["ids"]


def test_a_seed_gives_the_same_text_again(model: gguftools.Model):
    texts = [list(model.generate("Anne", Sampling(seed=seed), max_tokens=12)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_samples_share_a_prompt_and_are_each_their_own(model: gguftools.Model, kind: CacheType):
    """Also where one overtakes another; a prompt is read once."""
    alone = [model.generate("Anne", Sampling(seed=seed), max_tokens=12, cache_type=kind) for seed in (5, 6, 7)]
    samples = model.generate_samples("Anne", Sampling(seed=5), n=3, max_tokens=12, cache_type=kind)
    going = [iter(each) for each in samples]
    next(going[2])
    for _ in zip(going[0], going[1], strict=False):
        pass
    for each in (*going, *alone):
        list(each)
    assert [each.tokens for each in samples] == [each.tokens for each in alone]
    assert len({tuple(each.tokens) for each in samples}) == 3
    assert samples[2].prefill_seconds > 0 == samples[0].prefill_seconds


def test_the_best_are_those_that_the_model_finds_likeliest(model: gguftools.Model):
    all_of_them = model.generate_samples("Anne", Sampling(seed=5, logprobs=0), n=5, max_tokens=8)
    for each in all_of_them:
        list(each)
    best = model.generate_samples("Anne", Sampling(seed=5), n=2, best_of=5, max_tokens=8)
    wanted = sorted(all_of_them, key=lambda each: each.cumulative_logprob, reverse=True)
    assert [each.tokens for each in best] == [each.tokens for each in wanted[:2]]
    with pytest.raises(OptionError, match="best_of is 2; 3 or more is expected"):
        model.generate_samples("Anne", n=3, best_of=2)


def test_logprobs_are_those_of_the_logits(model: gguftools.Model):
    generation = model.generate("Anne", Sampling(seed=1, logprobs=3), max_tokens=6)
    list(generation)
    text = [*generation.prompt, *generation.tokens]
    logits = gguftools.load(model).logits(text)[len(generation.prompt) - 1 : -1].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [each.token for each in generation.logprobs] == generation.tokens
    for row, found in zip(logprobs, generation.logprobs, strict=True):
        np.testing.assert_allclose(found.logprob, row[found.token], atol=1e-3)
        np.testing.assert_allclose(found.logprobs, np.sort(row)[::-1][:3], atol=1e-3)
    assert generation.cumulative_logprob == sum(each.logprob for each in generation.logprobs)


@pytest.mark.parametrize(("kind", "bytes_a_number"), [("f32", 4), ("f16", 2), ("q8_0", 34 / 32)])
def test_a_cache_is_as_large_as_the_formula_says(model: gguftools.Model, kind: CacheType, bytes_a_number: float):
    generation = model.generate("Anne", GREEDY, max_tokens=100, cache_type=kind)
    assert generation.cache_bytes == 0
    next(iter(generation))
    numbers = {
        key: int(model.metadata[f"llama.{key}"])
        for key in ("block_count", "attention.head_count", "attention.head_count_kv", "embedding_length")
    }
    width = numbers["embedding_length"] // numbers["attention.head_count"]
    a_token = numbers["block_count"] * numbers["attention.head_count_kv"] * 2 * width * bytes_a_number
    room = a_token * (generation.prompt_tokens + 100)
    assert generation.cache_bytes == room
    generation.finish()
    assert generation.cache_bytes == room


def test_it_ends_at_a_stop_string_that_is_not_part_of_the_text(model: gguftools.Model):
    whole = model.generate("Anne", GREEDY, max_tokens=20)
    list(whole)
    stop = whole.text[10:14]
    generation = model.generate("Anne", GREEDY, max_tokens=20, stop=[stop])
    assert "".join(piece.text for piece in generation) == generation.text == whole.text[: whole.text.index(stop)]
    assert (generation.stop_reason, generation.stopped_by) == ("stop", stop)


LONG = """
import sys
import numpy as np
import gguftools
from runtime.sampling.parameters import Sampling

path, tokens = sys.argv[1], int(sys.argv[2])
model = gguftools.open(path)
if tokens > 8192:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 8192}
    model.metadata.update({f"llama.rope.scaling.{key}": value for key, value in scaling.items()})
greedy = Sampling(temperature=0, ignore_eos=True)
list(model.generate([5] * 1100, greedy, max_tokens=2, context=1200))  # compiles, and lays weights out

def status(key):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
prompt = np.random.default_rng(0).integers(5, model.tokenizer.vocab_size, tokens)
generation = model.generate(prompt, greedy, max_tokens=20, context=tokens + 8)
list(generation)
print(status("VmHWM") - before, generation.cache_bytes, len(generation.tokens), generation.stop_reason)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for the peak of memory")
@pytest.mark.parametrize(
    "tokens", [2500, pytest.param(8192, marks=pytest.mark.slow), pytest.param(12_000, marks=pytest.mark.slow)]
)
def test_a_long_prompt_takes_little_more_than_its_cache(path: Path, tokens: int):
    done = subprocess.run([sys.executable, "-c", LONG, path, str(tokens)], capture_output=True, text=True, check=True)
    peak, cache, written, ended = done.stdout.split()
    assert int(cache) == (tokens + 8) * 4 * 4 * 2 * 32 * 4  # layers, heads, keys and values of so many float32
    assert int(peak) < int(cache) + 20_000_000 + tokens * 1000  # of one layer keys and values are laid out anew
    assert (written, ended) == ("8", "context")


def test_it_ends_where_the_context_ends(model: gguftools.Model):
    generation = model.generate("Anne", GREEDY, context=10)
    list(generation)
    assert (generation.stop_reason, len(generation.tokens) + generation.prompt_tokens) == ("context", 10)


def test_a_grammar_is_followed_to_its_end(model: gguftools.Model):
    pytest.importorskip("llguidance")
    for seed in range(3):
        generation = model.generate("Answer:", Sampling(seed=seed), max_tokens=20, grammar='root ::= "yes" | "no"')
        list(generation)
        assert generation.text in ("yes", "no")
        assert generation.stop_reason == "end"


def test_repetitions_can_be_weakened(model: gguftools.Model):
    plain = model.generate("Anne", GREEDY, max_tokens=40)
    dry = model.generate("Anne", Sampling(temperature=0, ignore_eos=True, dry_multiplier=5.0), max_tokens=40)
    for each in (plain, dry):
        list(each)
    assert len(set(dry.tokens)) > len(set(plain.tokens))


def test_an_encoder_does_not_speak(tmp_path: Path, shared: Path):
    zoo_build.build(ZOO, "bert", tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    with pytest.raises(ModelError, match="reads a text as a whole"):
        list(gguftools.open(tmp_path / "f32.gguf").generate([5, 6], max_tokens=2))


def test_it_can_be_stopped(model: gguftools.Model):
    generation = model.generate("Anne", GREEDY, max_tokens=20)
    for piece in generation:
        assert piece.token is not None
        if len(generation.tokens) == 3:
            generation.stop()
    assert (generation.stop_reason, len(generation.tokens)) == ("stopped", 3)


def test_a_prompt_longer_than_the_context_is_refused(model: gguftools.Model):
    with pytest.raises(OptionError, match="the prompt has 30 tokens; the context of 16 has no room"):
        model.generate([5] * 30, context=16)


def test_nothing_is_generated_for_no_tokens(model: gguftools.Model):
    generation = model.generate("Anne", max_tokens=0)
    assert (list(generation), generation.stop_reason) == ([], "length")


def test_a_conversation_goes_through_the_template(path: Path):
    with gguftools.open(path) as model:
        model.chat_template = TEMPLATE
        generation = model.generate([{"role": "user", "content": "Anne"}], max_tokens=0)
        assert model.tokenizer.decode(generation.prompt, skip_special=True).strip() == "user: Anne"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "chat template"),
        ("{{ 'x' * 10**11 }}", "memory"),
        ("{{ raise_exception('no') }}", "no"),
        (None, "no chat"),
    ],
)
def test_a_template_that_cannot_be_used(path: Path, template: str | None, said: str):
    with gguftools.open(path) as model:
        model.chat_template = template
        with pytest.raises(VocabularyError, match=said):
            model.generate([{"role": "user", "content": "Anne"}], max_tokens=1)


def test_what_was_said_before_logits_break_is_kept(model: gguftools.Model, monkeypatch: pytest.MonkeyPatch):
    generation = model.generate("Anne", GREEDY, max_tokens=20)
    forward, calls = generation.model.forward, iter(range(20))

    def damaged(*arguments: Any) -> Any:
        logits = forward(*arguments)
        return np.full_like(logits, np.nan) if next(calls) == 3 else logits

    monkeypatch.setattr(generation.model, "forward", damaged)
    with pytest.raises(ModelError):
        list(generation)
    assert len(generation.tokens) == 3
    assert generation.text


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interruption_within_a_character(
    model: gguftools.Model, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What is said before it is kept, half a character as U+FFFD; JSON is whole."""
    pieces = [model.tokenizer.piece(token) for token in range(model.tokenizer.vocab_size)]
    tokens = iter([pieces.index(each) for each in (b"a", b"\xe2", b"\x82")])
    generation = model.generate("Anne", GREEDY, max_tokens=20)

    def speaking(*arguments: Any) -> Any:
        for token in tokens:
            logits = np.zeros((1, len(pieces)), np.float32)
            logits[0, token] = 9
            return logits
        raise KeyboardInterrupt

    monkeypatch.setattr(generation.model, "forward", speaking)
    with pytest.raises(KeyboardInterrupt):
        stream([generation], Path("model.gguf"), 1, as_json)
    said = capsys.readouterr().out
    if as_json:
        found = json.loads(said)
        assert (found["text"], found["stop_reason"], len(found["tokens"])) == ("a\ufffd", "interrupted", 3)
    else:
        assert said == "a\ufffd\n"


def test_an_interruption_between_texts_keeps_those_that_are_done(
    model: gguftools.Model, capsys: pytest.CaptureFixture[str]
):
    def texts() -> Iterator[Generation]:
        yield model.generate("Anne", GREEDY, max_tokens=3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(texts(), Path("model.gguf"), 2, True)
    assert [len(each["tokens"]) for each in json.loads(capsys.readouterr().out)] == [3]


@pytest.mark.parametrize("as_json", [False, True])
def test_damaged_weights_are_one_line(path: Path, tmp_path: Path, as_json: bool):
    raw = np.fromfile(path, np.uint8)
    at = open_gguf(path).parts[0].offsets["blk.2.ffn_up.weight"]
    raw[at + 20 : at + 24].view(np.float32)[:] = np.nan
    raw.tofile(tmp_path / "damaged.gguf")
    done = typed("generate", tmp_path / "damaged.gguf", "-p", "Anne", "-n", "3", *["--json"] * as_json)
    assert done.returncode == 1
    assert "logits are not finite" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    if as_json:
        assert json.loads(done.stdout)["stop_reason"] == "interrupted"
    else:
        assert not done.stdout.strip()


def test_a_prompt_without_room_is_one_line(path: Path):
    done = typed("generate", path, "-p", "Anne Elliot", "--ctx", "4")
    assert done.returncode == 1
    assert "the context of 4 has no room for more" in done.stderr
    assert not done.stdout


def test_text_goes_to_stdout_and_speeds_to_stderr(path: Path):
    done = typed("generate", path, "-p", "Anne", "-n", "8", "--temp", "0")
    assert done.returncode == 0
    described = json.loads(typed("generate", path, "-p", "Anne", "-n", "8", "--temp", "0", "--json").stdout)
    assert done.stdout == described["text"] + "\n"
    assert described["cache_bytes"] == 64 * 4 * 4 * (32 + 32) * 4  # room, layers, heads, widths, bytes
    assert "8 tokens" in done.stderr
    assert (len(described["tokens"]), described["prompt_tokens"], described["stop_reason"]) == (8, 4, "length")


def test_a_call_says_how_much_it_read_and_wrote(path: Path):
    chosen = ["--sampling", "top_n_sigma=0.01", "--samplers", "s", "--sampling", "logit_bias=5-inf"]
    done = typed("generate", path, "-p", "Anne", "-n", "1", *chosen, "--ctx", "1000")
    likeliest = typed("generate", path, "-p", "Anne", "-n", "1", "--temp", "0")
    assert done.stdout == likeliest.stdout
    assert "text 1 token, " in done.stderr
    assert "warning: windows of 1000 tokens are longer than the context of 512" in done.stderr
    assert "not read; text 0 tokens" in typed("generate", path, "-p", "Anne", "-n", "0").stderr
    twice = typed("generate", path, "-p", "Anne", "--top-k", "3", "--sampling", "top_k=3")
    assert (twice.returncode, twice.stderr) == (1, "error: top_k is given twice: 3 and 3\n")


def test_samples_and_logprobs_are_in_the_json(path: Path):
    words = ["generate", path, "-p", "Anne", "-n", "4", "--json", "--seed"]
    one, two = json.loads(typed(*words, "3", "--samples", "2", "--logprobs", "1").stdout)
    alone = json.loads(typed(*words, "4").stdout)
    assert two["tokens"] == alone["tokens"] != one["tokens"]
    assert [each["token"] for each in two["logprobs"]] == two["tokens"]
    assert all(len(each["top"]) == 1 and each["logprob"] <= each["top"][0]["logprob"] for each in two["logprobs"])
    assert "logprobs" not in alone


def test_several_prompts(path: Path, tmp_path: Path):
    (tmp_path / "prompts.jsonl").write_text('"Anne"\n{"prompt": "They"}\n')
    (tmp_path / "prompts.txt").write_text("Anne\n\nThey\n")
    texts = []
    for name in ("prompts.jsonl", "prompts.txt"):
        done = typed("generate", path, "--prompts", tmp_path / name, "-n", "4", "--temp", "0", "--json")
        texts.append([each["tokens"] for each in json.loads(done.stdout)])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2


def test_an_interruption_keeps_what_was_said(path: Path, tmp_path: Path):
    words = [sys.executable, "-m", "gguftools", "generate", str(path), "-p", "Anne", "--ignore-eos", "--ctx", "100000"]
    said = tmp_path / "said"
    with said.open("wb") as file, subprocess.Popen(words, stdout=file, stderr=subprocess.PIPE, text=True) as child:
        while child.poll() is None and said.stat().st_size < 10:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=60)
        if child.poll() is None:  # one of a thousand is lost, nobody knows where: who waits presses again
            child.send_signal(signal.SIGINT)
        try:
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert errors.splitlines()[-1] == "interrupted"
    assert child.returncode == 130
    assert said.read_text().endswith("\n")


def test_an_interruption_that_was_swallowed_ends_the_text_all_the_same(model: gguftools.Model, monkeypatch, capsys):
    generation = model.generate("Anne", GREEDY, max_tokens=20)

    def swallow(token: int) -> bytes:
        monkeypatch.setattr(interruption, "arrived", signal.SIGINT)
        return model.tokenizer.piece(token)

    monkeypatch.setattr(generation, "_piece", swallow)
    with pytest.raises(KeyboardInterrupt):
        stream([generation], Path("model.gguf"), 1, as_json=False)
    assert len(generation.tokens) == 1
    assert capsys.readouterr().out == generation.text + "\n"


@pytest.mark.parametrize(("more", "read"), [(["--ignore-eos", "--ctx", "100000"], 10), (["-n", "2", "--json"], 0)])
def test_a_reader_that_leaves_is_no_error_to_tell(path: Path, more: list[str], read: int):
    words = [sys.executable, "-m", "gguftools", "generate", str(path), "-p", "Anne", *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(read)
        child.stdout.close()
        said = child.stderr.read().decode()
    assert child.returncode == 1
    assert "Traceback" not in said


def test_tokens_of_a_text(path: Path, model: gguftools.Model):
    found = json.loads(typed("tokenize", path, "-p", "Anne Elliot", "--json").stdout)
    assert found["ids"] == model.tokenizer.encode("Anne Elliot", add_special=False)
    assert "".join(found["pieces"]).strip() == "Anne Elliot"
    assert typed("tokenize", path, "-p", "Anne Elliot", "--count").stdout == f"{len(found['ids'])}\n"
    special = json.loads(typed("tokenize", path, "-p", "Anne Elliot", "--json", "--special").stdout)
    assert special["ids"] == model.tokenizer.encode("Anne Elliot", parse_special=True)
    read = len(model.generate("Anne Elliot", GREEDY, max_tokens=1).prompt)
    assert (found["prompt_count"], special["prompt_count"]) == (read, read)
    said = typed("tokenize", path, "-p", "Anne Elliot", "--count").stderr
    assert (f"as a prompt, {read} tokens" in said) is (read != found["count"])


def test_templates_are_rendered_and_compared(path: Path, tmp_path: Path):
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    for file, template in ((one, TEMPLATE), (other, TEMPLATE.replace(": ", " says "))):
        assert typed("set-metadata", path, "--chat-template", template, "-o", file).returncode == 0
    assert "user: What is 2 + 2?" in typed("chat-template", one).stdout
    assert typed("chat-template", one, "--against", one).returncode == 0
    differing = typed("chat-template", one, "--against", other)
    assert differing.returncode == 1
    assert "-user: What is 2 + 2?" in differing.stdout
    assert "+user says What is 2 + 2?" in differing.stdout
    (tmp_path / "talk.jsonl").write_text('{"messages": [{"role": "user", "content": "Anne?"}]}\n')
    found = json.loads(typed("chat-template", one, "--messages", tmp_path / "talk.jsonl", "--json").stdout)
    assert [each["text"] for each in found["texts"]] == ["user: Anne?\n"]


@pytest.mark.parametrize("as_json", [False, True])
def test_prompts_and_samples_are_written_together_and_printed_in_order(path: Path, tmp_path: Path, as_json: bool):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Anne\nIt is a truth\nNo\n")
    options = "--prompts", prompts, "--samples", 2, "-n", 12, "--seed", 3, "--stop", "ee", *["--json"] * as_json
    together, alone = (typed("generate", path, *options, *more) for more in (("-np", 4), ("--parallel", 1)))
    assert (together.returncode, alone.returncode) == (0, 0)
    if not as_json:
        assert together.stdout == alone.stdout
        assert "all: 6 texts of " in together.stderr
        return
    both = [json.loads(each.stdout) for each in (together, alone)]
    assert len(both[0]) == 6
    for name in ("prompt_tokens", "tokens", "text", "stop_reason", "stopped_by", "cache_bytes"):
        assert [each[name] for each in both[0]] == [each[name] for each in both[1]]
