"""Files of tasks, and what is said of those that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gguftools.measurement.tasks import hellaswag, multiple_choice, winogrande
from quants.errors import FileError

from ..task_files import choices, text

GOOD = "Cooking: They cook\n2\na.\nb.\nc.\nd.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


def test_hellaswag(file):
    file.write_text(GOOD.removesuffix("\n"))  # the last line's end may be missing
    [task] = hellaswag.load(file, None, 1).tasks
    assert task.texts == (
        "Cooking: They cook a.",
        "Cooking: They cook b.",
        "Cooking: They cook c.",
        "Cooking: They cook d.",
    )
    assert task.right == {2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no tasks"),
        (b"\n", "has no tasks"),
        (GOOD.encode() + b"\n", "7 lines"),
        (b"a\n0\n", "2 lines"),
        (GOOD.replace("2", "4").encode(), "line 2 is '4'; the number of the right ending"),
        (GOOD.replace("2", "-1").encode(), "line 2 is '-1'"),
        (GOOD.replace("2", "x").encode(), "line 2 is 'x'"),
        (GOOD.replace("c.", " ").encode(), "line 5 is empty"),
        ((GOOD + GOOD.replace("b.", "")).encode(), "line 10 is empty"),
        (b"\xff" + GOOD.encode(), "byte 0 is 0xff"),
    ],
)
def test_no_file_of_hellaswag(file, content, said):
    file.write_bytes(content)
    with pytest.raises(FileError, match=said):
        hellaswag.load(file, None, 1)


def test_winogrande(file):
    """As the reference reads them: quotes around the sentence, the last line lost, lines that are no tasks left out."""
    file.write_text(
        '0,"Well, _ was late, again.",Ann,Bob,2\n1,so _ left,he,she, 1\nno task\n2,no gap,a,b,1\n3,a _,a,b,3\n'
        '4,a _,a,b,12\n5,A "b, c" _ d _.,x,,2\n6,lost _,a,b,1\n'
    )
    found = winogrande.load(file, None, 1)
    assert [task.texts for task in found.tasks] == [
        ("Well, Ann was late, again.", "Well, Bob was late, again."),
        ("so he left", "so she left"),
        ('A "b, c" x d _.', 'A "b, c"  d _.'),
    ]
    assert found.tasks[0].bases == ("Well, Ann", "Well, Bob")
    assert [task.right for task in found.tasks] == [{1}, {0}, {1}]
    assert found.available == 3
    assert [remark.partition(" of ")[0] for remark in found.left_out] == [f"line {n}" for n in (3, 4, 5, 6, 8)]


def test_the_last_line_counts_before_an_empty_one(file):
    file.write_text("0,a _ b,x,y,1\n\n")
    found = winogrande.load(file, None, 1)
    assert (len(found.tasks), found.left_out) == (1, ())


@pytest.mark.parametrize("content", [b"", b"\n", b"0,a _ b,x,y,1\n", b"nothing\nat\nall\n\n"])
def test_no_file_of_winogrande(file, content):
    file.write_bytes(content)
    with pytest.raises(FileError, match="has no tasks"):
        winogrande.load(file, None, 1)


def packed(*tasks: bytes, begins: list[int] | None = None) -> bytes:
    head, at = 4 + 4 * len(tasks), []
    for i in range(len(tasks)):
        at.append(head + sum(map(len, tasks[:i])))
    return struct.pack(f"<I{len(tasks)}I", len(tasks), *(begins or at)) + b"".join(tasks)


def task(question: str = "2 + 2 =", answers: tuple[str, ...] = ("3", "4"), labels: tuple[int, ...] = (0, 1)) -> bytes:
    return text(question) + choices(list(answers), list(labels)) + choices([], [])


def test_multiple_choice(file):
    file.write_bytes(packed(task(), task("Größe:", ("klein", "groß", "ä"), (1, 0, 1))))
    found = multiple_choice.load(file, None, 1).tasks
    assert [each.texts for each in found] == [("2 + 2 = 3", "2 + 2 = 4"), ("Größe: klein", "Größe: groß", "Größe: ä")]
    assert [each.right for each in found] == [{1}, {0, 2}]
    assert multiple_choice.load(file, 1, 1).tasks[0] in found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the header: the number of tasks takes 4 bytes, of which the file has 0"),
        (bytes(4), "there are no tasks"),
        (b"\xff" * 8, "the table of 4,294,967,295 tasks takes"),
        (packed(task())[:-1], "task 1 of 1: the number of answers takes 4 bytes, of which the file has 3"),
        (packed(text("q") + struct.pack("<I", 101)), "101 answers; at most 100"),
        (packed(text("q") + struct.pack("<II", 1, 1 << 31)), "answer 1 takes 2,147,483,648 bytes"),
        (packed(struct.pack("<I", 2) + b"\xc3(" + choices(["a"], [1]) * 2), "question is not UTF-8 text at byte 12"),
        (packed(task("")), "the question is empty"),
        (packed(task(answers=("", "a"))), "an answer is empty"),
        (packed(task(answers=(), labels=())), "the list of answers is empty"),
    ],
)
def test_no_file_of_multiple_choice(file, content, said):
    file.write_bytes(content)
    with pytest.raises(FileError, match=said):
        multiple_choice.load(file, None, 1)


@pytest.mark.parametrize("begin", [0, 11, 1 << 30])
def test_tasks_that_begin_outside(file, begin):
    file.write_bytes(packed(task(), task(), begins=[begin, begin]))
    assert len(multiple_choice.load(file, 2, 1).tasks) == 2  # where all are read, nobody looks
    with pytest.raises(FileError, match=f"by the table it begins at byte {begin:,} of"):
        multiple_choice.load(file, 1, 1)
