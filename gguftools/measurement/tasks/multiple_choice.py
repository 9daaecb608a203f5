"""Multiple choice (MMLU, ARC, TruthfulQA), in the binary files that llama-perplexity reads.

Little-endian: uint32 tasks, uint32 for each where it begins in the file; then the tasks: the question, the answers one
of which is right, and others several of which may be, which are not used. Answers: uint32 how many (up to 100), each,
and an int32 for each, 1 where it is right. Texts: uint32 bytes, and these.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from quants.errors import FileError

from .drawing import picked
from .task import Drawn, Task, read_bytes

MAX_ANSWERS = 100


@dataclass
class _Reader:
    """Reads a file whose lengths may be wrong."""

    path: Path
    data: bytes
    at: int = 0
    task: str = "the header"

    def take(self, count: int, what: str) -> bytes:
        left = len(self.data) - self.at
        if count > left:
            raise self.wrong(f"{what} takes {count:,} bytes, of which the file has {left:,}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def text(self, what: str) -> str:
        begin = self.at + 4
        try:
            return self.take(self.number(f"the length of {what}"), what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(f"{what} is not UTF-8 text at byte {begin + error.start}") from error

    def answers(self) -> tuple[list[str], tuple[int, ...]]:
        count = self.number("the number of answers")
        if count > MAX_ANSWERS:
            raise self.wrong(f"{count:,} answers; at most {MAX_ANSWERS} are expected")
        texts = [self.text(f"answer {i + 1}") for i in range(count)]
        return texts, struct.unpack(f"<{count}i", self.take(4 * count, "what is right"))

    def wrong(self, what: str) -> FileError:
        return FileError(f"{self.path}, {self.task}: {what}", "is it a file for llama-perplexity's --multiple-choice?")


def load(path: Path, tasks: int | None, seed: int) -> Drawn:
    """Draw tasks from a file, all by default. Raises FileError for an invalid file."""
    reader = _Reader(path, read_bytes(path))
    count = reader.number("the number of tasks")
    if not count:
        raise reader.wrong("there are no tasks")
    begins = struct.unpack(f"<{count}I", reader.take(4 * count, f"the table of {count:,} tasks"))
    drawn, loaded = picked(count, tasks, seed), []
    for i in drawn:
        reader.task = f"task {i + 1} of {count}"
        if len(drawn) < count:  # llama-perplexity ignores the table, too, if it reads all
            reader.at = begins[i]
            if not 4 + 4 * count <= begins[i] < len(reader.data):
                raise reader.wrong(f"by the table it begins at byte {begins[i]:,} of {len(reader.data):,}")
        loaded.append(_task(reader))
    return Drawn(loaded, count)


def _task(reader: _Reader) -> Task:
    question = reader.text("the question")
    (answers, labels), _ = reader.answers(), reader.answers()
    if not question or not answers or not all(answers):
        empty = "the question" if not question else "an answer" if answers else "the list of answers"
        raise reader.wrong(f"{empty} is empty")
    texts = tuple(f"{question} {answer}" for answer in answers)
    right = frozenset(i for i, label in enumerate(labels) if label == 1)
    return Task(f"{reader.task} of {reader.path}", texts, right)
