"""Record how llama.cpp cuts texts where a vocabulary lacks a key, and print how ours compares.

    python -m tests.verify.absent_vocabularies --record SOURCE LIBRARIES     from checkpoints, by llama.cpp b11434
    python -m tests.verify.absent_vocabularies [NAME …]                      each case beside what is recorded

Of all small checkpoints those count whose vocabularies have other kinds, names or keys than others before them.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguftools
from archs.metadata import Metadata
from tests import absent_vocabularies, zoo, zoo_build
from tests.absent_vocabularies import Case, Vocabulary
from tests.archs import checkpoints

from .absent_keys import Reference, compiled, reason_of, write_gguf

UNREAD = ("tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.systemone")
NEEDED = "tokenizer.ggml.model"
GAPS = ("fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle")  # the last three until 2024


def vocabularies() -> Iterator[Vocabulary]:
    seen = set()
    for entry in (*zoo.entries(), *checkpoints.entries()):
        with tempfile.TemporaryDirectory() as folder:
            if entry in checkpoints.entries():
                checkpoints.build(entry, Path(folder, entry))
            else:
                zoo_build.build(zoo.ZOO, entry, Path(folder, entry))
            gguftools.convert(Path(folder, entry), Path(folder, "vocabulary.gguf"), "f32")
            with gguftools.open(Path(folder, "vocabulary.gguf")) as file:
                keys = dict(described(file.metadata))
        merges = len(keys.get("tokenizer.ggml.merges", ("", ""))[-1])
        kind = (keys[NEEDED], keys.get("tokenizer.ggml.pre"), merges, *keys)
        if kind not in seen and "tokenizer.ggml.tokens" in keys:
            seen.add(kind)
            yield Vocabulary(entry, keys)


def described(metadata: Metadata) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key in metadata:
        if key.startswith("tokenizer.") and key not in UNREAD and not key.startswith("tokenizer.huggingface."):
            value = metadata.value(key)
            kinds = [kind.name for kind in (value.type, value.element) if kind is not None]
            data = value.data if value.element is None else [getattr(x, "item", lambda x=x: x)() for x in value.data]
            yield key, (*kinds, data)


class Cutter(Reference):
    def cut(self, vocabulary: Vocabulary, cases: list[Case]) -> list[Case]:
        texts = self.folder / "texts"
        texts.write_bytes("".join(f"{text}\0" for text in vocabulary.texts).encode())
        files = [self.folder / f"{number}.gguf" for number in range(len(cases))]
        for file, case in zip(files, cases, strict=True):
            with file.open("wb") as out:
                write_gguf(out, vocabulary.metadata(case), {})
        answers = self.answers([f"tokens {file} {texts}" for file in files])
        done = [answered(vocabulary, *each) for each in zip(cases, files, answers, strict=True)]
        for file in files:
            file.unlink()
            Path(f"{file}.out").unlink(missing_ok=True)
        return done


def answered(vocabulary: Vocabulary, case: Case, file: Path, answer: str) -> Case:
    outcome, *rest = answer.split(" ", 1)
    if outcome != "loaded":
        return Case(case.vocabulary, case.drop, case.changed, outcome, reason_of("".join(rest)))
    *lines, _, ends = Path(f"{file}.out").read_text(encoding="utf-8").split("\n")[: len(vocabulary.texts) + 2]
    ids = [list(map(int, line.split())) for line in lines]
    return Case(case.vocabulary, case.drop, case.changed, "loaded", "", ids, list(map(int, ends.split())))


def cases_of(vocabulary: Vocabulary, reference: Cutter) -> list[Case]:
    name = vocabulary.name
    single = [Case(name), *(Case(name, (key,)) for key in vocabulary.keys)]
    done = reference.cut(vocabulary, single)
    optional = [case.drop[0] for case in done[1:] if case.outcome == "loaded"]
    ids = [key for key in optional if key.endswith("_token_id")]
    groups = [tuple(each) for each in (ids, optional) if len(each) > 1]
    number = len(vocabulary.keys["tokenizer.ggml.tokens"][-1]) - 1
    gaps = [{f"tokenizer.ggml.{gap}_token_id": ("UINT32", number)} for gap in GAPS]
    more = [*(Case(name, each) for each in groups), *(Case(name, (), gap) for gap in gaps)]
    return done + reference.cut(vocabulary, more)


def record(source: Path, libraries: Path) -> None:
    lines, answers = list[str](), dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        reference = Cutter(compiled(source, libraries, Path(folder)), Path(folder))
        for vocabulary in vocabularies():
            lines.append(json.dumps(vars(vocabulary), ensure_ascii=False))
            found = cases_of(vocabulary, reference)
            print(vocabulary.name, dict(collections.Counter(case.outcome for case in found)), found[0].reason)
            for case in found:
                line: dict[str, Any] = {"vocabulary": case.vocabulary, "drop": case.drop, "outcome": case.outcome}
                if case.changed:
                    line["changed"] = case.changed
                if case.ids is None:
                    lines.append(json.dumps({**line, "reason": case.reason}))
                    continue
                answer = json.dumps({"ids": case.ids, "ends": case.ends})
                if answer not in answers:
                    answers[answer] = len(answers)
                    lines.append(answer)
                lines.append(json.dumps({**line, "answer": answers[answer]}))
    absent_vocabularies.VOCABULARIES.parent.mkdir(exist_ok=True)
    with lzma.open(absent_vocabularies.VOCABULARIES, "wt", encoding="utf-8", preset=9) as file:
        file.write("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs=2, type=Path, metavar=("SOURCE", "LIBRARIES"))
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.record:
        record(*asked.record)
        return 0
    counts: collections.Counter[str] = collections.Counter()
    for name, (vocabulary, cases) in absent_vocabularies.recorded().items():
        for each in absent_vocabularies.compare(vocabulary, cases) if name in (asked.names or [name]) else ():
            counts[each.verdict] += 1
            if each.verdict in ("differs", "crashed", "refused here"):
                print(f"{name}: {each.case.name}: {each.verdict}: {each.problem[:400]}")
    print(dict(counts))
    return int(bool(counts["differs"] + counts["crashed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
