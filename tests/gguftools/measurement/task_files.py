"""Files of tasks in llama-perplexity's formats, made of the novel at hand: the same bytes each time.

python -m tests.gguftools.measurement.task_files FOLDER
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from random import Random

from ...conftest import ROOT

TEXT = ROOT / "gguftools" / "examples" / "persuasion.txt"
TASKS = 430  # of which 400 are drawn


def write(folder: Path) -> None:
    """hellaswag.txt, winogrande.csv and choices.bin."""
    (folder / "hellaswag.txt").write_text(hellaswag(), encoding="utf-8")
    (folder / "winogrande.csv").write_text(winogrande(), encoding="utf-8")
    (folder / "choices.bin").write_bytes(multiple_choice())


def sentences() -> list[str]:
    flat = " ".join(TEXT.read_text(encoding="utf-8").split())
    found = re.split(r"(?<=[.;!?])\s+", flat)
    return [each for each in found if 20 <= len(each) <= 160 and "_" not in each]


def pick(random: Random, count: int) -> int:
    """A number below count; `random` alone gives the same in all versions of Python."""
    return int(random.random() * count)


def hellaswag() -> str:
    random, every, lines = Random(1), sentences(), []
    for _ in range(TASKS):
        at, gold = pick(random, len(every) - 3), pick(random, 4)
        endings = [every[pick(random, len(every))] for _ in range(4)]
        endings[gold] = every[at + 2]
        lines += [f"Reading: {every[at]} {every[at + 1]}", str(gold), *endings]
    return "\n".join(lines) + "\n"


def winogrande() -> str:
    """Sentences without a word, some at the end, so that little comes after it, some with a comma and so quoted."""
    random, every, lines = Random(2), sentences(), []
    while len(lines) < TASKS:
        words = every[pick(random, len(every))].replace('"', "").split()
        other = every[pick(random, len(every))].replace('"', "").split()
        at = pick(random, len(words)) if random.random() < 0.7 else len(words) - 1 - pick(random, 3)
        if at < 1:
            continue
        right, wrong = words[at].strip(".,;:!?"), other[pick(random, len(other))].strip(".,;:!?")
        if not right or not wrong or right == wrong:
            continue
        sentence = " ".join([*words[:at], words[at].replace(right, "_", 1), *words[at + 1 :]])
        if sentence.count("_") != 1:
            continue
        answer = 1 + pick(random, 2)
        first, second = (right, wrong) if answer == 1 else (wrong, right)
        quoted = f'"{sentence}"' if "," in sentence else sentence
        lines.append(f"{len(lines)},{quoted},{first},{second},{answer}")
    return "\n".join(lines) + "\n"


def multiple_choice() -> bytes:
    """Two to five answers; of the second list, which nobody reads, one."""
    random, every, tasks = Random(3), sentences(), []
    for _ in range(TASKS):
        words = every[pick(random, len(every))].split()
        at, count = 1 + pick(random, len(words) - 1), 2 + pick(random, 4)
        right = pick(random, count)
        answers = []
        for _ in range(count):
            other = every[pick(random, len(every))].split()
            start = pick(random, len(other))
            answers.append(" ".join(other[start : start + 1 + pick(random, 6)]))
        answers[right] = " ".join(words[at:])
        labels = [int(each == right) for each in range(count)]
        tasks.append(text(" ".join(words[:at])) + choices(answers, labels) + choices(["x"], [1]))
    starts, at = [], 0
    for task in tasks:
        starts.append(at)
        at += len(task)
    head = 4 + 4 * len(tasks)
    return struct.pack(f"<I{len(tasks)}I", len(tasks), *(head + start for start in starts)) + b"".join(tasks)


def choices(answers: list[str], labels: list[int]) -> bytes:
    return struct.pack("<I", len(answers)) + b"".join(map(text, answers)) + struct.pack(f"<{len(labels)}i", *labels)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
