"""Attention over caches as operations, against `runtime.mixers.attention` and float64."""

import numpy as np
import pytest

from runtime.kernels import attention_operations as ops
from runtime.kernels import attention_parts as division
from runtime.kernels import context_state, thread_team
from runtime.kernels import head_operations as heads_of
from runtime.mixers.attention import attend
from runtime.products.gemv import aligned

RNG = np.random.default_rng(6)


def state_of(slots):
    """slots: of each text the position of its first token and how many there are."""
    state, at = np.zeros(context_state.SIZE, np.int64), 0
    for slot, (first, count) in enumerate(slots):
        for i in range(count):
            state[[context_state.POSITIONS + at, context_state.SLOTS + at]] = first + i, slot
            at += 1
    state[context_state.TOKENS] = at
    return state


def run(operation, fields, threads):
    row = thread_team.operation_row(operation(), fields)
    for thread in reversed(range(threads)):
        thread_team.run_share(row, thread, threads)


def attention_of(q, texts, slots, threads, scale=0.2, **more):
    """q (tokens, heads, width) over texts, each keys and values (positions, groups, width) in float32."""
    tokens, heads, width = q.shape
    _, groups, value_width = texts[0][1].shape
    group = heads // groups
    most, room = division.max_parts(group), division.scratch_room(groups, width, value_width)
    common = {
        heads_of.STATE: state_of(slots),
        heads_of.HEADS: group,
        division.GROUPS: groups,
        division.VALUE_WIDTH: value_width,
        division.PARTS: most,
        division.PARTIAL: np.full(division.partial_room(heads, value_width, most, tokens), np.nan, np.float32),
    }
    tables = [np.array([text[i].ctypes.data for text in texts]) for i in range(2)]
    fields = {
        heads_of.X: q,
        heads_of.X_WIDTH: heads * width,
        heads_of.X_APART: width,
        heads_of.HEAD_WIDTH: width,
        ops.ALL_KEYS: tables[0],
        ops.ALL_VALUES: tables[1],
        heads_of.SCALE: scale,
        ops.ROOM: room,
        ops.CAP: 0.0,
        ops.SCRATCH: np.full(room * threads, np.nan, np.float32),
    }
    run(ops.attend, common | fields | more, threads)
    columns = -(-heads * value_width // 256) * 256
    out = aligned((tokens, columns))
    run(ops.finish_heads, common | {heads_of.OUT: out, heads_of.OUT_WIDTH: columns} | more, threads)
    assert not out[:, heads * value_width :].any()
    return out[:, : heads * value_width]


def some(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "value_width"),
    [(9, 3, 64, 64), (1, 1, 16, 16), (40, 1, 48, 32), (7, 7, 20, 9), (10, 2, 80, 112), (2, 1, 3, 130), (8, 4, 256, 64)],
)
def test_any_number_of_threads_gives_the_same(heads, groups, width, value_width):
    slots = [(0, 1), (777, 4), (63, 1), (128, 2)]
    texts = [(some(first + n, groups, width), some(first + n, groups, value_width)) for first, n in slots]
    q = some(8, heads, width)
    found, at = attention_of(q, texts, slots, 1), 0
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(attention_of(q, texts, slots, threads), found)
    for (first, n), (k, v) in zip(slots, texts, strict=True):
        wanted = attend(q[at : at + n], k, v, first + np.arange(n), 0.2)
        np.testing.assert_allclose(found[at : at + n], wanted, atol=3e-6 * np.abs(v).max())
        at += n


@pytest.mark.parametrize(("heads", "groups"), [(9, 3), (6, 6), (21, 3), (4, 1)])
def test_rows_that_fill_no_tile(heads, groups):
    """Tiles of scores have rows that are not there, also of the last group; many positions are several blocks."""
    for slots in ([(900, 1)], [(400, 7)], [(390, 5), (2500, 3)]):
        texts = [(some(first + n, groups, 32), some(first + n, groups, 32)) for first, n in slots]
        q, at = some(sum(n for _, n in slots), heads, 32), 0
        found = attention_of(q, texts, slots, 2)
        for (first, n), (k, v) in zip(slots, texts, strict=True):
            wanted = attend(q[at : at + n], k, v, first + np.arange(n), 0.2)
            np.testing.assert_allclose(found[at : at + n], wanted, atol=3e-6 * np.abs(v).max())
            at += n


def test_a_text_gives_the_same_whatever_others_there_are():
    k, v, q = some(300, 2, 32), some(300, 2, 32), some(3, 6, 32)
    alone = attention_of(q[:1], [(k, v)], [(299, 1)], 2)
    other = some(50, 2, 32), some(50, 2, 32)
    both = attention_of(q, [(k, v), other], [(299, 1), (48, 2)], 3)
    np.testing.assert_array_equal(both[:1], alone)


@pytest.mark.parametrize("place", [0, 35, 99])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows(place, which, value):
    text = some(100, 2, 32), some(100, 2, 32)
    text[which][place, 0] = value
    found = np.isfinite(attention_of(some(1, 4, 32), [text], [(99, 1)], 2).reshape(4, 32)).all(axis=1)
    assert found.tolist() == [False, False, True, True]


def test_huge_scores_do_not_overflow():
    k, v, q = 100 * some(200, 1, 16), some(200, 1, 16), 100 * some(1, 2, 16)
    found = attention_of(q, [(k, v)], [(199, 1)], 2).reshape(2, 16)
    np.testing.assert_allclose(found, v[(k[:, 0] @ q[0].T).argmax(0), 0], rtol=1e-6)


def test_nothing_behind_a_token_is_read():
    """Caches have room of which nobody knows what is in it."""
    k, v = some(64, 1, 24), some(64, 1, 24)
    k[40:], v[40:] = np.nan, np.nan
    assert np.isfinite(attention_of(some(2, 3, 24), [(k, v)], [(38, 2)], 1)).all()


def test_more_sinks_than_scores():
    """A large sink takes nearly all; without it, weights add up to one."""
    k, v, q = some(70, 1, 16), np.ones((70, 1, 16), np.float32), some(1, 2, 16)
    sinks = np.array([100, -100], np.float32)
    more = {ops.SINKS: sinks}
    slots, heads = [(69, 1)], 2
    most = division.max_parts(heads)
    found = attention_of(q, [(k, v)], slots, 1)
    np.testing.assert_allclose(found, 1, atol=1e-6)
    room = division.scratch_room(1, 16, 16)
    common = {
        heads_of.STATE: state_of(slots),
        heads_of.HEADS: heads,
        division.GROUPS: 1,
        division.VALUE_WIDTH: 16,
        division.PARTS: most,
        division.PARTIAL: aligned((division.partial_room(heads, 16, most, 1),)),
    }
    run(
        ops.attend,
        common
        | {
            heads_of.X: q,
            heads_of.X_WIDTH: 32,
            heads_of.X_APART: 16,
            heads_of.HEAD_WIDTH: 16,
            ops.ALL_KEYS: np.array([k.ctypes.data]),
            ops.ALL_VALUES: np.array([v.ctypes.data]),
            heads_of.SCALE: 0.2,
            ops.ROOM: room,
            ops.SCRATCH: aligned((room,)),
        },
        1,
    )
    out = aligned((1, 256))
    run(ops.finish_heads, common | {heads_of.OUT: out, heads_of.OUT_WIDTH: 256} | more, 1)
    np.testing.assert_allclose(out[0, :32], [0] * 16 + [1] * 16, atol=1e-6)
