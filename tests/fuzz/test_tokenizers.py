"""Nonsense in tokenizer files: conversion refuses it with an error of ours, quickly and within bounded memory, or makes
a vocabulary that `validate` takes and that reads and writes text.

The suite tries some hundred. Many more:

    python -m tests.fuzz.test_tokenizers --count 5000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from archs.vocab import files, vocabulary
from gguftools.inspection.vocabulary_check import check_vocabulary
from quants.errors import GgufToolsError, VocabularyError
from runtime.tokenizer import tokenizer_from_metadata
from tests.archs.checkpoints import FAMILIES
from tests.fuzz import assembled
from tests.fuzz.test_configs import MEMORY, SECONDS, peak_memory, wrong_values
from tests.zoo import ZOO

Json = Any
Edit = Callable[[Any, random.Random], None]
ALL_KINDS = ("sentencepiece", "unigram", "fairseq", "plain_bpe", "bpe", "wordpiece")
ROWS = 640
SAMPLE = "Hello, world 123\n naïve 日本語 🙂 ▁ <mask>"
WRONG = [*wrong_values(), "\ud800", "a b", " ", "▁", "##", "<0x00>", "<0xZZ>", "a" * 5000, [["a", 1]], ["a", "b"]]
EXTRA: dict[str, Json] = {  # files that a folder may have beside its own
    "added_tokens.json": {"<x>": 600, "<y>": 601},
    "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    "vocab.json": {"a": 0, "b": 1, "ab": 2},
    "tekken.json": {
        "config": {"default_num_special_tokens": 2, "default_vocab_size": 6, "pattern": "a|b"},
        "vocab": [{"rank": 0, "token_bytes": "YQ=="}, {"rank": 1, "token_bytes": "Yg=="}],
    },
    "chat_template.json": {"chat_template": "{{ x }}"},
}
TEXTS = {
    "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\n",
    "merges.txt": "#version: 0.2\na b\n",
    "qwen.tiktoken": "YQ== 0\n",
    "chat_template.jinja": "{{ x }}",
}


def places(content: Json) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with every key in it, large ones by some of theirs."""
    found: list[tuple[Any, Any]] = []
    level = [content]
    while level:
        inner = []
        for each in level:
            keys = list(each)[:40] if isinstance(each, dict) else range(min(len(each), 40))
            for key in keys:
                found.append((each, key))
                if isinstance(each[key], (dict, list)):
                    inner.append(each[key])
        level = inner
    return found


def replace(content: Json, chance: random.Random) -> None:
    holder, key = chance.choice(places(content))
    holder[key] = chance.choice(WRONG)


def remove(content: Json, chance: random.Random) -> None:
    holder, key = chance.choice(places(content))
    del holder[key]


def rename(content: Json, chance: random.Random) -> None:
    named = [(holder, key) for holder, key in places(content) if isinstance(holder, dict)]
    if not named:
        return
    holder, key = chance.choice(named)
    holder[chance.choice([text for text in WRONG if isinstance(text, str)])] = holder.pop(key)


def renumber(content: Json, chance: random.Random) -> None:
    numbers = [each for each in places(content) if type(each[0][each[1]]) in (int, float)]
    for holder, key in chance.sample(numbers, min(len(numbers), chance.choice((1, 1, 5, 1000)))):
        holder[key] = chance.choice((0, -1, 1, 5, 639, 640, 2**31, 2**40, 1.5, float("nan"), 10**30))


def empty(content: Json, chance: random.Random) -> None:
    holders = [(holder, key) for holder, key in places(content) if isinstance(holder[key], (dict, list, str))]
    if holders:
        holder, key = chance.choice(holders)
        holder[key] = type(holder[key])()


EDITS: tuple[Edit, ...] = (replace, replace, replace, remove, rename, renumber, renumber, empty)


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut, doubled or put in."""
    raw = bytearray(raw)  # type: ignore[assignment]
    for _ in range(chance.choice((1, 1, 3, 30))):
        at = chance.randrange(len(raw) + 1)
        what = chance.choice(("set", "cut", "delete", "insert", "double"))
        if what == "set" and at < len(raw):
            raw[at] = chance.randrange(256)  # type: ignore[index]
        elif what == "cut":
            raw = raw[: chance.choice((at, 0, 1, 64))]
        elif what == "delete":
            raw = raw[:at] + raw[at + chance.randrange(1, 40) :]
        elif what == "insert":
            raw = raw[:at] + chance.choice((b"\xff", b"\x00", b"\n" * 1000, b"9" * 400, b"\xed\xa0\x80")) + raw[at:]
        elif what == "double":
            raw = raw[:at] + raw[:at]
    return bytes(raw)


def change(folder: Path, chance: random.Random) -> None:
    """One or some of the folder's files changed, added or removed."""
    if chance.random() < 0.2:
        for name in chance.sample(list(EXTRA) + list(TEXTS), chance.randrange(1, 4)):
            text = TEXTS[name] if name in TEXTS else json.dumps(EXTRA[name])
            (folder / name).write_text(text, encoding="utf-8")
        if chance.random() < 0.5:
            (folder / "tokenizer.json").unlink(missing_ok=True)
    paths = sorted(folder.iterdir())
    for path in chance.sample(paths, min(len(paths), chance.choice((1, 1, 2)))):
        if path.suffix == ".json" and chance.random() < 0.85:
            content = json.loads(path.read_text(encoding="utf-8"))
            for _ in range(chance.choice((1, 1, 2, 4))):
                if places(content):
                    chance.choice(EDITS)(content, chance)
            path.write_text(json.dumps(content), encoding="utf-8")
        else:
            path.write_bytes(damaged(path.read_bytes(), chance))


@pytest.fixture(autouse=True)
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its converters run in a process of their own, with limits: seconds for each folder that nothing else takes."""
    monkeypatch.setattr(files, "tokenizer_by_transformers", not_asked)


def not_asked(folder: Path) -> NoReturn:
    raise VocabularyError(f"{folder} has no tokenizer that can be read")


def attempt(source: Path, folder: Path, chance: random.Random) -> str:
    """What becomes of the source's tokenizer, changed. Raises what should have been an error of ours."""
    shutil.copytree(source, folder)
    try:
        change(folder, chance)
        kinds = chance.choice((ALL_KINDS, ("bpe",), ("sentencepiece", "bpe"), ("wordpiece",), ("unigram",)))
        metadata = vocabulary(folder, kinds, {}, ROWS, embed=chance.random() < 0.1)
        wrong = [each for each in check_vocabulary(metadata, {}) if each[0] == "error"]
        assert not wrong, wrong[:2]
        tokenizer = tokenizer_from_metadata(metadata)
        tokenizer.decode(tokenizer.encode(SAMPLE, parse_special=True))
        tokenizer.decode(range(tokenizer.vocab_size))
        return "sound"
    except GgufToolsError as error:
        return type(error).__name__ if len(str(error)) < 1500 else "a very long message"
    finally:
        shutil.rmtree(folder)


def sources() -> Iterator[Path]:
    yield from sorted(path for path in (FAMILIES / "tokenizers").iterdir() if path.is_dir())
    if ZOO.is_dir():
        yield from sorted(path for path in (ZOO / "tokenizers").iterdir() if path.is_dir())


@pytest.mark.parametrize("name", sorted(path.name for path in (FAMILIES / "tokenizers").iterdir()))
def test_nonsense(name: str, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for i in range(40):
        found[attempt(FAMILIES / "tokenizers" / name, tmp_path / "x", random.Random(f"suite:{name}:{i}"))] += 1
    assert found["VocabularyError"] + found["FileError"] > 4
    assert found["sound"] > 1 or name in {"plamo", "rwkv", "unigram"}  # one file, each line of which is looked at


@pytest.mark.parametrize("part", range(4))
def test_assembled_tokenizers_stay_what_they_are(part: int, tmp_path: Path) -> None:
    outcomes = Counter(assembled.attempt(tmp_path / "x", random.Random(f"suite:{part}:{i}")) for i in range(12))
    assert sum(count for outcome, count in outcomes.items() if outcome.endswith("the same")) > 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a failure printed before")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    failures, slowest = 0, 0.0
    found = list(sources())
    files.tokenizer_by_transformers = not_asked
    for name in ("sentencepiece", "tokenizers"):
        importlib.import_module(name)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        before, begin = peak_memory(), time.perf_counter()
        for i in range(arguments.count) if arguments.only is None else (arguments.only,):
            source, chance = found[i % len(found)], random.Random(f"{arguments.seed}:{i}")
            start, memory = time.process_time(), peak_memory()
            try:
                outcome = attempt(source, Path(folder) / "x", chance)
                spent = time.process_time() - start
                slowest = max(slowest, spent)
                assert spent < SECONDS, f"took {spent:.1f} s of processor time"
                assert peak_memory() - memory < MEMORY, f"took {peak_memory() - memory >> 20} MB"
                outcomes[outcome] += 1
            except Exception as error:
                failures += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                print(
                    f"{i} {source.name}: {type(error).__name__}: {str(error)[:300]} "
                    f"({Path(where.filename).name}:{where.lineno})",
                    file=sys.stderr,
                )
        seconds, memory = time.perf_counter() - begin, peak_memory() - before
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8}  {outcome}")
    print(
        f"{failures} failures in {arguments.count} tokenizers, {seconds:.0f} s, slowest {slowest:.2f} s of processor "
        f"time, peak memory +{memory >> 20} MB"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    sys.exit(main())
