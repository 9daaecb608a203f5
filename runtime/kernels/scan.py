"""Recurrences over the tokens of one text: convolutions, Mamba, Mamba-2, gated delta nets, RWKV. States, results in
place.

Neighbouring channels lie next to each other in the states, sixteen in the lanes of a vector; numbers of channels, and
widths of heads, are multiples of that. Arrays are C-contiguous float32.
"""

import numpy as np

from quants.kernels.jit import inlined, kernel
from quants.kernels.lane_memory import load, store
from quants.kernels.lanes import LANES, every

from .exponential import exp, exp_of_lanes
from .int16x32 import multiply_add

f32 = np.float32


@kernel
def convolve(known, taps, bias, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[t] = bias + the sum over i of known[t + i] * taps[i], for tokens start … stop; all (…, channels)."""
    channels = bias.size
    for t in range(start, stop):
        for c in range(0, channels, LANES):
            total = load(bias, c)
            for i in range(taps.shape[0]):
                total = multiply_add(load(known, (t + i) * channels + c), load(taps, i * channels + c), total)
            store(out, t * channels + c, total)


@kernel
def scan_channels(a, x, dt, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute Mamba's scan: x, dt, y (tokens, channels); a, state (size, channels); b, c (tokens, size); sixteens of
    channels start … stop.
    """
    channels = a.shape[1]
    for i in range(LANES * start, LANES * stop, LANES):
        for t in range(x.shape[0]):
            step, value = load(dt, t * channels + i), load(x, t * channels + i)
            store(y, t * channels + i, advance_channels(a, step, value, b[t], c[t], state, i, channels))


@inlined
def advance_channels(a, step, x, write, read, state, at, channels):  # type: ignore[no-untyped-def]
    """Decay sixteen channels' states, of `channels` in a row, by e^(step * a) and add step * x * write; return their
    sum times read.
    """
    value, total = step * x, every(f32(0))
    for s in range(write.size):
        own = s * channels + at
        kept = load(state, own) * exp_of_lanes(step * load(a, own))
        kept = multiply_add(value, every(write[s]), kept)
        store(state, own, kept)
        total = multiply_add(kept, every(read[s]), total)
    return total


@kernel
def scan_heads(a, x, dt, b, c, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute Mamba-2's scan: x, y (tokens, heads, width); dt (tokens, heads); a (heads,); b, c (tokens, groups, size);
    state (heads, size, width); heads start … stop. Heads share b and c in equal groups of neighbours.
    """
    heads, size, width = state.shape
    share = heads // b.shape[1]
    for h in range(start, stop):
        for t in range(x.shape[0]):
            step, at, own = dt[t, h], (t * heads + h) * width, h * size * width
            write, read = b[t, h // share], c[t, h // share]
            advance_head(x, at, width, step, exp(step * a[h]), write, read, state, own, y, at)


@inlined
def advance_head(x, x_at, width, dt, decay, write, read, state, own, y, y_at):  # type: ignore[no-untyped-def]
    """Update a head's state (size, width) from `own` on to itself * decay + dt * x outer write; y: it times read.

    width: of x and y; columns of the state past whole lanes of it are left to the caller.
    """
    stride, wide = (width + LANES - 1) // LANES * LANES, width // (4 * LANES) * (4 * LANES)
    whole = width // LANES * LANES
    for i in range(0, wide, 4 * LANES):  # a row of them is four cache lines: memory is read in order
        v0, v1 = load(x, x_at + i) * dt, load(x, x_at + i + LANES) * dt
        v2, v3 = load(x, x_at + i + 2 * LANES) * dt, load(x, x_at + i + 3 * LANES) * dt
        s0, s1, s2, s3 = _step_of_four(v0, v1, v2, v3, every(decay), write, read, state, own + i, stride)
        store(y, y_at + i, s0)
        store(y, y_at + i + LANES, s1)
        store(y, y_at + i + 2 * LANES, s2)
        store(y, y_at + i + 3 * LANES, s3)
    for i in range(wide, whole, LANES):
        value = load(x, x_at + i) * dt
        store(y, y_at + i, _step(value, every(decay), write, read, state, own + i, stride))


@inlined
def _step_of_four(v0, v1, v2, v3, decay, write, read, state, at, stride):  # type: ignore[no-untyped-def]
    """Return `_step` of four neighbouring sixteens."""
    s0, s1, s2, s3 = every(f32(0)), every(f32(0)), every(f32(0)), every(f32(0))
    for s in range(write.size):
        own, w, r = at + s * stride, every(write[s]), every(read[s])
        k0 = multiply_add(v0, w, load(state, own) * decay)
        k1 = multiply_add(v1, w, load(state, own + LANES) * decay)
        k2 = multiply_add(v2, w, load(state, own + 2 * LANES) * decay)
        k3 = multiply_add(v3, w, load(state, own + 3 * LANES) * decay)
        store(state, own, k0)
        store(state, own + LANES, k1)
        store(state, own + 2 * LANES, k2)
        store(state, own + 3 * LANES, k3)
        s0, s1 = multiply_add(k0, r, s0), multiply_add(k1, r, s1)
        s2, s3 = multiply_add(k2, r, s2), multiply_add(k3, r, s3)
    return s0, s1, s2, s3


@inlined
def _step(value, decay, write, read, state, at, stride):  # type: ignore[no-untyped-def]
    """Update each row of sixteen in the state to itself * decay + value * write[row]; return the sum of row *
    read[row].
    """
    even, odd = every(f32(0)), every(f32(0))  # two sums, so that one does not wait for the other
    for s in range(write.size):
        kept = multiply_add(value, every(write[s]), load(state, at + s * stride) * decay)
        store(state, at + s * stride, kept)
        even, odd = odd, multiply_add(kept, every(read[s]), even)
    return even + odd


@kernel
def delta_heads(v, q, k, decay, beta, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute the gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a state decays by `decay`; its answer to
    the key is moved towards the value by `beta`.

    q, k (tokens, heads, size); v, y (tokens, heads, width); decay, beta (tokens, heads); state (heads, size, width);
    heads start … stop.
    """
    heads, size, width = state.shape
    one = f32(1)
    for h in range(start, stop):
        for t in range(q.shape[0]):
            at, own, rate = (t * heads + h) * width, h * size * width, beta[t, h]
            delta_head(v, at, width, q[t, h], k[t, h], one, one, decay[t, h : h + 1], 0, rate, state, own, y, at)


@inlined
def delta_head(v, v_at, width, q, k, q_scale, k_scale, decay, apart, beta, state, own, y, y_at):  # type: ignore[no-untyped-def]
    """Apply the delta rule to a head's state (size, width) from `own` on, with the key k * k_scale; y: it times q *
    q_scale.

    Row s of the state decays by decay[s * apart]. width: of v and y; columns of the state past whole lanes of it are
    left to the caller.
    """
    stride, wide = (width + LANES - 1) // LANES * LANES, width // (4 * LANES) * (4 * LANES)
    for i in range(0, wide, 4 * LANES):
        a0, a1, a2, a3 = _answer_of_four(k, decay, apart, state, own + i, stride)
        rate = beta * k_scale
        a0, a1 = (load(v, v_at + i) - a0 * k_scale) * rate, (load(v, v_at + i + LANES) - a1 * k_scale) * rate
        a2 = (load(v, v_at + i + 2 * LANES) - a2 * k_scale) * rate
        a3 = (load(v, v_at + i + 3 * LANES) - a3 * k_scale) * rate
        a0, a1, a2, a3 = _correct_four(a0, a1, a2, a3, q, k, decay, apart, state, own + i, stride)
        store(y, y_at + i, a0 * q_scale)
        store(y, y_at + i + LANES, a1 * q_scale)
        store(y, y_at + i + 2 * LANES, a2 * q_scale)
        store(y, y_at + i + 3 * LANES, a3 * q_scale)
    for i in range(wide, width // LANES * LANES, LANES):
        answer, total, at = every(f32(0)), every(f32(0)), own + i
        for s in range(k.size):
            answer = multiply_add(load(state, at + s * stride) * decay[s * apart], every(k[s]), answer)
        error = (load(v, v_at + i) - answer * k_scale) * (beta * k_scale)
        for s in range(k.size):
            kept = multiply_add(error, every(k[s]), load(state, at + s * stride) * decay[s * apart])
            store(state, at + s * stride, kept)
            total = multiply_add(kept, every(q[s]), total)
        store(y, y_at + i, total * q_scale)


@inlined
def _answer_of_four(k, decay, apart, state, at, stride):  # type: ignore[no-untyped-def]
    """Return the answers of four neighbouring sixteens of a decayed state to a key."""
    a0, a1, a2, a3 = every(f32(0)), every(f32(0)), every(f32(0)), every(f32(0))
    for s in range(k.size):
        own, key = at + s * stride, every(k[s] * decay[s * apart])
        a0, a1 = multiply_add(load(state, own), key, a0), multiply_add(load(state, own + LANES), key, a1)
        a2 = multiply_add(load(state, own + 2 * LANES), key, a2)
        a3 = multiply_add(load(state, own + 3 * LANES), key, a3)
    return a0, a1, a2, a3


@inlined
def _correct_four(e0, e1, e2, e3, q, k, decay, apart, state, at, stride):  # type: ignore[no-untyped-def]
    """Decay four neighbouring sixteens of a state, and add errors outer key; return them times q."""
    s0, s1, s2, s3 = every(f32(0)), every(f32(0)), every(f32(0)), every(f32(0))
    for s in range(k.size):
        own, key, read, forget = at + s * stride, every(k[s]), every(q[s]), every(decay[s * apart])
        k0 = multiply_add(e0, key, load(state, own) * forget)
        k1 = multiply_add(e1, key, load(state, own + LANES) * forget)
        k2 = multiply_add(e2, key, load(state, own + 2 * LANES) * forget)
        k3 = multiply_add(e3, key, load(state, own + 3 * LANES) * forget)
        store(state, own, k0)
        store(state, own + LANES, k1)
        store(state, own + 2 * LANES, k2)
        store(state, own + 3 * LANES, k3)
        s0, s1 = multiply_add(k0, read, s0), multiply_add(k1, read, s1)
        s2, s3 = multiply_add(k2, read, s2), multiply_add(k3, read, s3)
    return s0, s1, s2, s3


@kernel
def delta_channels(v, q, k, decay, beta, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute `delta_heads` with a decay for each channel of keys: decay (tokens, heads, size)."""
    heads, size, width = state.shape
    one = f32(1)
    for h in range(start, stop):
        for t in range(q.shape[0]):
            at, own, rate = (t * heads + h) * width, h * size * width, beta[t, h]
            delta_head(v, at, width, q[t, h], k[t, h], one, one, decay[t, h], 1, rate, state, own, y, at)


@inlined
def _answer(read, state, at, stride):  # type: ignore[no-untyped-def]
    """Return the sum of each row of sixteen in the state * read[row]."""
    even, odd = every(f32(0)), every(f32(0))
    for s in range(read.size):
        even, odd = odd, multiply_add(load(state, at + s * stride), every(read[s]), even)
    return even + odd


@kernel
def wkv_heads(v, r, k, w, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute RWKV 6: r, k, w (tokens, heads, size); v, y (tokens, heads, width); state (heads, size, width); heads
    start … stop. A token reads (by r) the state before it; then every row decays by w, and v * k is added.
    """
    heads, size, width = state.shape
    for h in range(start, stop):
        for t in range(r.shape[0]):
            at = (t * heads + h) * width
            wkv_head(v, at, width, r[t, h], k[t, h], w[t, h], state, h * size * width, y, at)


@inlined
def wkv_head(v, v_at, width, r, k, w, state, own, y, y_at):  # type: ignore[no-untyped-def]
    for i in range(0, width, LANES):
        value, total = load(v, v_at + i), every(f32(0))
        for s in range(r.size):
            before = load(state, own + s * width + i)
            total = multiply_add(before, every(r[s]), total)
            store(state, own + s * width + i, multiply_add(value, every(k[s]), before * w[s]))
        store(y, y_at + i, total)


@kernel
def wkv7_heads(v, r, k, w, a, b, state, y, start, stop):  # type: ignore[no-untyped-def]
    """Compute RWKV 7: as `wkv_heads`, but the state's answer to a is added by b, too, and the state is read after
    that.
    """
    heads, size, width = state.shape
    for h in range(start, stop):
        for t in range(r.shape[0]):
            at = (t * heads + h) * width
            wkv7_head(v, at, width, r[t, h], k[t, h], w[t, h], a[t, h], b[t, h], state, h * size * width, y, at)


@inlined
def wkv7_head(v, v_at, width, r, k, w, a, b, state, own, y, y_at):  # type: ignore[no-untyped-def]
    for i in range(0, width, LANES):
        value, total, at = load(v, v_at + i), every(f32(0)), own + i
        answer = _answer(a, state, at, width)
        for s in range(r.size):
            kept = multiply_add(value, every(k[s]), load(state, at + s * width) * w[s])
            kept = multiply_add(answer, every(b[s]), kept)
            store(state, at + s * width, kept)
            total = multiply_add(kept, every(r[s]), total)
        store(y, y_at + i, total)
