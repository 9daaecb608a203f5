"""Files of stored logits: what is in them, and files that lie."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from quants.errors import FileError
from runtime.evaluation.stored_logits import StoredLayout, encode_rows, stored_logits

rng = np.random.default_rng(1)


def stored(vocabulary: int) -> tuple[bytes, np.ndarray]:
    n_ctx, count = 8, 2
    tokens = np.arange(n_ctx * count, dtype="<i4") % vocabulary
    words = 4 + 2 * ((vocabulary + 1) // 2)
    rows = rng.integers(0, 65536, (count, 3, words)).astype("<u2")
    rows[:, :, :4] = np.frombuffer(struct.pack("<ff", 16 / 65535, -17.5), "<u2")
    header = b"_logits_" + struct.pack("<iii", n_ctx, vocabulary, count)
    return header + tokens.tobytes() + rows.tobytes(), rows[:, :, 4 : 4 + vocabulary] * (16 / 65535) - 17.5


@pytest.mark.parametrize("vocabulary", [10, 11])
def test_what_is_stored(vocabulary):
    raw, want = stored(vocabulary)
    got = stored_logits(np.frombuffer(raw, np.uint8))
    assert (got.n_ctx, got.vocabulary, got.windows) == (8, vocabulary, 2)
    assert got.tokens.tolist() == [i % vocabulary for i in range(16)]
    layout = StoredLayout(8, vocabulary, 2)
    assert len(raw) == layout.size
    assert layout.header(got.tokens) == raw[: layout.begin]
    np.testing.assert_allclose([got.logits(i, 0, 3) for i in range(2)], want, rtol=1e-5)
    np.testing.assert_allclose(got.logits(1, 1, 2), want[1, 1:2], rtol=1e-5)


def damaged() -> list[bytes]:
    raw = stored(10)[0]
    most = 2**31 - 1
    heads = [(3, 10, 2), (-8, 10, 2), (8, -10, 2), (8, 10, 0), (8, 10, -2), (8, 10, 3), (most, most, most)]
    lies = [raw[:8] + struct.pack("<iii", *head) + raw[20:] for head in heads]
    outside = raw[:24] + struct.pack("<i", 10) + raw[28:]
    return [raw[:-1], raw + b"\0", raw[:12], raw[1:], raw[:0], outside, *lies]


@pytest.mark.parametrize("number", range(len(damaged())))
def test_files_that_lie_are_refused(number):
    with pytest.raises(FileError):
        stored_logits(np.frombuffer(damaged()[number], np.uint8))


@pytest.mark.parametrize("vocabulary", [10, 11])
def test_what_is_written_is_read_again(vocabulary):
    logits = (rng.standard_normal((6, vocabulary)) * 5).astype(np.float32)
    logits[0], logits[1, 3] = 2.5, -1000  # all alike; far below the rest
    layout = StoredLayout(8, vocabulary, 2)
    raw = bytearray(layout.size)
    raw[: layout.begin] = layout.header(np.arange(16) % vocabulary)
    for window, start, stop in ((1, 0, 3), (0, 1, 3), (0, 0, 1)):
        rows = encode_rows(logits[3 * window + start : 3 * window + stop])
        at = layout.offset(window, start)
        raw[at : at + len(rows)] = rows
    got = stored_logits(np.frombuffer(raw, np.uint8))
    want = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=1, keepdims=True)
    want = np.maximum(want, want.max(1, keepdims=True) - 16)
    np.testing.assert_allclose(np.concatenate([got.logits(i, 0, 3) for i in range(2)]), want, atol=1.3e-4)
