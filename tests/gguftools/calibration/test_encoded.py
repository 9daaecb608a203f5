"""What is kept beside an output, in units: bytes that take the place of others, lines that lie."""

import json

import numpy as np
import pytest

from gguftools.calibration.encoded import open_encoded
from gguftools.writing.resume import SEARCHED, unfinished_warnings
from quants import Tensor, format_named, from_array

HEAD = {"gguftools": 1, "of": "test"}
FORMS = [format_named(name) for name in ("Q8_0", "Q4_0", "Q6_K")]


def tensor(name: str, rows: int = 8) -> Tensor:
    random = np.random.default_rng(rows)
    return from_array(name, random.standard_normal((rows, 256)).astype(np.float32))


def raw(like, form):
    return form.encode(like.float32(0, like.rows))


def stopped(target, work, head=HEAD, resume=False):
    """Do some work, and end as a killed run does."""
    with pytest.raises(RuntimeError), open_encoded(target, head, resume, SEARCHED) as kept:  # noqa: PT012
        work(kept)
        raise RuntimeError


def test_what_is_kept_is_read_and_restored(tmp_path):
    target, a, b = tmp_path / "x.gguf", tensor("a"), tensor("b", 5)

    def work(kept):
        kept.keep(a, FORMS[0], raw(a, FORMS[0]), {"said": 1})
        kept.keep(b, FORMS[1], raw(b, FORMS[1]), {})
        kept.note("figure", {"of": [1.5]})
        assert np.array_equal(kept.tensors["a"].raw(2, 7), raw(a, FORMS[0])[2:7])

    stopped(target, work)
    with open_encoded(target, HEAD, True, SEARCHED) as kept:
        kept.restore({"a": (a, FORMS), "b": (b, FORMS[:1])})
        assert list(kept.tensors) == ["a"]  # b is wanted in another format
        assert np.array_equal(kept.tensors["a"].raw(0, 8), raw(a, FORMS[0]))
        assert (kept.remarks, kept.figures) == ({"a": {"said": 1}}, {"figure": {"of": [1.5]}})
    assert not list(tmp_path.iterdir())


def test_bytes_take_the_place_of_those_they_replace(tmp_path):
    """Weights that are encoded again and again do not make the file grow."""
    target, tensors = tmp_path / "x.gguf", [tensor(name) for name in "abcd"]
    random = np.random.default_rng(3)
    largest = FORMS[0].row_bytes(256) * 8

    def work(kept):
        for _ in range(60):
            like, form = tensors[random.integers(4)], FORMS[random.integers(3)]
            kept.keep(like, form, raw(like, form), {})
            for other in tensors:
                found = kept.tensors.get(other.name)
                assert found is None or np.array_equal(found.raw(0, 8), raw(other, found.format))
        assert target.with_name("x.gguf.search").stat().st_size <= 8 * largest
        wanted.update({name: found.format for name, found in kept.tensors.items()})

    wanted = {}
    stopped(target, work)
    with open_encoded(target, HEAD, True, SEARCHED) as kept:
        kept.restore({like.name: (like, FORMS) for like in tensors})
        assert {name: found.format for name, found in kept.tensors.items()} == wanted
        for like in tensors:
            assert np.array_equal(kept.tensors[like.name].raw(0, 8), raw(like, wanted[like.name]))
        new = tensor("new", 3)
        kept.keep(new, FORMS[2], raw(new, FORMS[2]), {})  # over nothing that was restored
        for like in tensors:
            assert np.array_equal(kept.tensors[like.name].raw(0, 8), raw(like, wanted[like.name]))


def test_figures_outlive_the_bytes(tmp_path):
    target, a = tmp_path / "x.gguf", tensor("a")

    def work(kept):
        kept.keep(a, FORMS[0], raw(a, FORMS[0]), {})
        kept.note("figure", 1)
        kept.drop_tensors()
        assert target.with_name("x.gguf.search").stat().st_size == 0

    stopped(target, work)
    with open_encoded(target, HEAD, True, SEARCHED) as kept:
        kept.restore({"a": (a, FORMS)})
        assert (kept.tensors, kept.figures) == ({}, {"figure": 1})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        "3",
        '{"figure": [1], "is": 2}',
        '["a", "Q8_0", -5, 2176, 0, {}]',
        '["a", "Q8_0", 0, 2175, 0, {}]',
        '["a", "Q8_0", 1e300, 2176, 0, {}]',
        '["a", "Q8_0", 0, 2176, 1, {}]',
        '["x", "Q8_0", 0, 2176, 0, {}]',
    ],
)
def test_lines_that_lie_are_not_believed(tmp_path, line):
    target, a = tmp_path / "x.gguf", tensor("a")
    stopped(target, lambda kept: kept.note("figure", 1))
    with target.with_name("x.gguf.search.journal").open("a") as journal:
        journal.write(line + "\n" + json.dumps({"figure": "next", "is": 2}) + "\n")
    with open_encoded(target, HEAD, True, SEARCHED) as kept:
        kept.restore({"a": (a, FORMS)})
        assert (kept.tensors, kept.figures) == ({}, {"figure": 1, "next": 2})


def test_other_runs_are_told_what_is_left(tmp_path):
    target = tmp_path / "x.gguf"
    stopped(target, lambda kept: kept.note("figure", 1))
    said = f"{target}.search is left of an interrupted run: finish that with `resume`, or delete it"
    assert unfinished_warnings([target], False) == [said]
    assert not unfinished_warnings([tmp_path / "y.gguf"], True, (SEARCHED,))  # of another file
    assert unfinished_warnings([target], True) == unfinished_warnings([target], False)
    assert "would have gone on" in unfinished_warnings([target], False, (SEARCHED,))[0]
    assert not unfinished_warnings([target], True, (SEARCHED,))
    with open_encoded(target, HEAD, True, SEARCHED):
        assert not unfinished_warnings([target], False)  # a run that is at work on it
    assert not unfinished_warnings([target], False)
