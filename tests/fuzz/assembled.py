"""Tokenizers put together at random of the parts that tokenizer.json knows: what a conversion makes of one reads texts
as the `tokenizers` library does, with and without the tokens around them, and so does what is exported of it; or it is
refused by name.

    python -m tests.fuzz.assembled --count 3000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from archs.vocab import vocabulary
from archs.vocab.pretokenizer import table
from archs.vocab.restore import restored_files
from gguftools.inspection.original.tokenizer_check import check_tokenizer
from quants.errors import GgufToolsError, VocabularyError
from tests.archs.checkpoints import FAMILIES

Json = Any
KINDS = {
    "bytes": ("bpe",),
    "pieces": ("sentencepiece",),
    "plain": ("plain_bpe",),
    "unigram": ("unigram",),
    "words": ("wordpiece",),
}
ROWS = 640
PREPENDED = {"type": "Prepend", "prepend": "▁"}
SPECIAL = (
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<|im_start|>",
    "<|im_end|>",
    "[CLS]",
    "[SEP]",
    "[gMASK]",
    "<x y>",
    "Word",
    "<tool>",
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CORPUS = (
    "the cat sat on the mat and the dog ate the hat of the cat",
    "hello world hello there 123 456 7",
    "naïve café été",
    "don't you're it's we'll THE CAT SAT",
    "def f(x):\n    return x + 1\n",
    "Привет мир 日本語 中文 текст",
    "a b c aa bb cc aaa abab",
)


@cache
def trained(kind: str) -> Json:
    """The model of a tokenizer.json, small and the same each time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind == "words":
        return json.loads((FAMILIES / "tokenizers/wordpiece/tokenizer.json").read_text(encoding="utf-8"))["model"]
    if kind == "unigram":
        model = json.loads((FAMILIES / "tokenizers/xlm-roberta/tokenizer.json").read_text(encoding="utf-8"))["model"]
        return {**model, "vocab": [each for each in model["vocab"] if not each[0].startswith("<")], "unk_id": None}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        start = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        start = ["▁"]
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=start, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if kind != "bytes":
        extra = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        texts = [*extra, *model["vocab"]]
        model = {
            **model,
            "vocab": {text: row for row, text in enumerate(texts)},
            "byte_fallback": True,
            "unk_token": "<unk>",
            "fuse_unk": True,
        }
    return model


def flag(chance: random.Random, likely: float = 0.5) -> bool:
    return chance.random() < likely


def replace(pattern: Json, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizer(chance: random.Random, kind: str) -> Json:
    """One block, several, or none."""
    parts: list[Callable[[], Json]] = [
        lambda: {"type": chance.choice(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"))},
        lambda: {"type": "Strip", "strip_left": flag(chance), "strip_right": flag(chance)},
        lambda: replace({"Regex": " {2,}"}, chance.choice((" ", "▁"))),
        lambda: replace({"String": chance.choice((" ", "``", "a"))}, chance.choice(("▁", '"', ""))),
        lambda: PREPENDED,
    ]
    usual = {
        "bytes": [None, {"type": "NFC"}],
        "unigram": [None, {"type": "NFKC"}],
        "pieces": [
            replace({"String": " "}, "▁"),
            None,
            {"type": "Sequence", "normalizers": [PREPENDED, replace({"String": " "}, "▁")]},
        ],
        "plain": [replace({"String": " "}, "▁")],
        "words": [
            {
                "type": "BertNormalizer",
                "clean_text": flag(chance),
                "handle_chinese_chars": flag(chance),
                "strip_accents": chance.choice((None, True, False)),
                "lowercase": flag(chance),
            }
        ],
    }[kind]
    if flag(chance, 0.6):
        return chance.choice(usual)
    chosen = [chance.choice(parts)() for _ in range(chance.randrange(1, 4))]
    return chosen[0] if len(chosen) == 1 and flag(chance) else {"type": "Sequence", "normalizers": chosen}


def cuts(chance: random.Random, kind: str) -> Json:
    """A pre-tokenizer: of byte vocabularies mostly one that has a name."""

    def split(pattern: Json) -> Json:
        behavior = chance.choice(
            ("Isolated", "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        )
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": flag(chance, 0.2)}

    def bytes_of(regex: bool) -> Json:
        return {"type": "ByteLevel", "add_prefix_space": flag(chance), "trim_offsets": True, "use_regex": regex}

    def metaspace() -> Json:
        return {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": chance.choice(("always", "first", "never")),
            "split": flag(chance),
        }

    if kind == "bytes":
        name = chance.choice(sorted(name for name, entry in table().items() if not entry.raw))
        named = [
            {**step}
            if isinstance(step, dict)
            else {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
            for step in table()[name].steps
        ]
        odd = [
            split({"Regex": r"[^\n]+|[\n]+"}),
            {"type": "WhitespaceSplit"},
            split({"Regex": r"\s"}),
            split({"String": " "}),
            {"type": "Digits", "individual_digits": flag(chance)},
            {"type": "Punctuation", "behavior": "Isolated"},
        ]
        if any(step["type"] == "ByteLevel" for step in named):
            steps = [
                step | ({"add_prefix_space": flag(chance)} if step["type"] == "ByteLevel" else {}) for step in named
            ]
        elif flag(chance, 0.65):
            steps = [*named, bytes_of(False)]
        else:
            steps = [*chance.sample(odd, chance.randrange(0, 3)), bytes_of(flag(chance))]
        return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    if kind == "words":
        return chance.choice(
            (
                {"type": "BertPreTokenizer"},
                {"type": "BertPreTokenizer"},
                {"type": "Whitespace"},
                {"type": "WhitespaceSplit"},
            )
        )
    spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace()]}
    digits = {"type": "Sequence", "pretokenizers": [metaspace(), {"type": "Digits", "individual_digits": True}]}
    return chance.choice((None, None, spaces, metaspace(), metaspace(), sequence, digits, split({"Regex": r"\d"})))


def around(chance: random.Random, ids: dict[str, int]) -> Json:
    """A post-processor, or none."""

    def special(text: str) -> Json:
        return {"SpecialToken": {"id": text, "type_id": 0}}

    names = sorted(ids)
    what = chance.choice(("none", "bytes", "template", "template", "template", "bert", "roberta", "sequence"))
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    if what == "none" or not names:
        return None
    if what == "bytes":
        return byte_level
    if what in ("bert", "roberta"):
        begin, end = chance.choice(names), chance.choice(names)
        block = {"type": "BertProcessing", "sep": [end, ids[end]], "cls": [begin, ids[begin]]}
        return block | (
            {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False} if what == "roberta" else {}
        )
    before, after = (
        [special(each) for each in chance.sample(names, min(len(names), chance.choice((0, 0, 1, 1, 2))))]
        for _ in range(2)
    )
    a, b = ({"Sequence": {"id": each, "type_id": 0}} for each in "AB")
    used = {part["SpecialToken"]["id"] for part in (*before, *after)}
    template = {
        "type": "TemplateProcessing",
        "single": [*before, a, *after],
        "pair": [*before, a, *after, b, *after],
        "special_tokens": {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in sorted(used)},
    }
    return {"type": "Sequence", "processors": [byte_level, template]} if what == "sequence" else template


def assembled(chance: random.Random, kind: str) -> tuple[Json, Json]:
    """A tokenizer.json and a tokenizer_config.json."""
    model = json.loads(json.dumps(trained(kind)))
    texts = list(SPECIAL[:4]) + chance.sample(SPECIAL[4:], chance.randrange(0, 6))
    if kind == "words":
        texts = [text for text in texts if text not in ("<s>", "</s>", "<unk>", "<pad>")]
    known = model["vocab"] if isinstance(model["vocab"], dict) else {}
    count, ids = len(model["vocab"]), dict[str, int]()
    for text in texts:
        ids[text] = known.get(text, count)
        count += ids[text] == count
    if kind == "unigram":  # others in the vocabulary would be what plain text can become there, which we do not allow
        model["vocab"].append(["<unk>", 0.0])
        ids["<unk>"], ids[texts[0]] = ids[texts[0]], ids["<unk>"]
        model["unk_id"] = ids["<unk>"]
    usual = ("<s>", "</s>", "<unk>", "<pad>", "[CLS]", "[SEP]")
    added = []
    for text in texts:
        special = text in usual or flag(chance, 0.7)
        flags = {"lstrip": flag(chance, 0.15), "rstrip": flag(chance, 0.15)}
        flags |= {"single_word": ids[text] >= len(known) > 0 and flag(chance, 0.1)}
        flags |= {"normalized": not special and flag(chance)}
        added.append({"id": ids[text], "content": text, "special": special, **flags})
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": normalizer(chance, kind),
        "added_tokens": sorted(added, key=lambda each: each["id"]),
        "pre_tokenizer": cuts(chance, kind),
        "post_processor": around(chance, ids),
        "decoder": None,
        "model": model,
    }
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, text in (
        ("bos", "<s>"),
        ("eos", "</s>"),
        ("unk", "<unk>"),
        ("cls", "[CLS]"),
        ("sep", "[SEP]"),
        ("bos", "[gMASK]"),
    ):
        if text in ids and flag(chance, 0.7):
            config[f"{role}_token"] = text
    for key in ("add_bos_token", "add_eos_token", "add_prefix_space"):
        if flag(chance, 0.12):
            config[key] = flag(chance)
    return content, config


def attempt(folder: Path, chance: random.Random) -> str:
    """What becomes of one. Raises AssertionError where texts become other tokens."""
    kind = chance.choice(list(KINDS))
    content, config = assembled(chance, kind)
    folder.mkdir()
    try:
        for name, value in (("tokenizer.json", content), ("tokenizer_config.json", config)):
            (folder / name).write_text(json.dumps(value), encoding="utf-8")
        metadata = vocabulary(folder, KINDS[kind], {}, ROWS)
        found = check_tokenizer(metadata, folder)
        if found.texts == 0:  # the library itself does not take it, or not a text
            return f"{kind}: not run"
        assert not found.differing, (
            f"{found.message}\n   {shown(content)} {config}\n   {[k for k in metadata if 'huggingface' in k]}"
        )
        back = folder.with_name(f"{folder.name}-back")
        back.mkdir()
        try:
            for name, raw in restored_files(metadata).items():
                (back / name).write_bytes(raw)
            again = check_tokenizer(metadata, back)
            said = f"exported: {again.message}\n   {shown(content)} {config}"
            assert not again.differing, said
            assert again.texts or not (back / "tokenizer.json").exists(), said
        finally:
            shutil.rmtree(back)
        return f"{kind}: the same"
    except VocabularyError:
        return f"{kind}: refused"
    finally:
        shutil.rmtree(folder)


def shown(content: Json) -> str:
    keys = ("normalizer", "pre_tokenizer", "post_processor", "added_tokens")
    return json.dumps({key: content[key] for key in keys}, ensure_ascii=False)[:1500]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a failure printed before")
    chosen = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(chosen.count) if chosen.only is None else (chosen.only,):
            try:
                outcomes[attempt(Path(folder) / "x", random.Random(f"{chosen.seed}:{i}"))] += 1
            except (AssertionError, GgufToolsError) as error:
                failures += 1
                print(f"{i}: {type(error).__name__}: {str(error)[:1800]}", file=sys.stderr)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8}  {outcome}")
    print(f"{failures} failures in {chosen.count} tokenizers")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
