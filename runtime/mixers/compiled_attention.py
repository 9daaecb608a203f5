"""Attention layers as compiled operations (`kernels.attention_operations`): from a layer's input to the heads' outputs.

Dataclasses describe what a layer computes; `write_attention` and `write_latent_attention` append its operations to a
list. Addresses that change between runs (rotation tables, growing caches) are patched into the rows recorded in
`Bound`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.spec import Rope

from ..arrays import Floats
from ..kernels import attention_operations as ops
from ..kernels import attention_parts as division
from ..kernels import dots, thread_team
from ..kernels import head_operations as heads_of
from ..kernels import token_parts as parts
from ..kernels.context_state import SIZE
from ..layer import Layer, Network
from ..products.gemv import MAX_TOKENS, Vectors, aligned, product_fields, vectors
from .latent_attention import attention_scale, size_of
from .self_attention import alibi_slopes

Ints = NDArray[np.int64]
Fields = dict[int, Any]
Gate = Literal["sigmoid", "softplus"]
GATES = {"sigmoid": ops.SIGMOID, "softplus": ops.SOFTPLUS}


@dataclass(frozen=True)
class AttentionSpec:
    """The computation of a layer's self-attention.

    Widths are of one head; rope_width 0: no rotation; window, chunk, softcap, clamp: 0 for none. steps: applied to
    queries, keys and values, as `archs.spec.Block.qkv_steps`. head_eps: of layer norms with weights for each head, 0
    for RMS norms. tempered: queries are multiplied by a factor of their position. slopes: of ALiBi, (heads,). biased: a
    table of terms by head and key is added to the scores. keeps: the layer has keys of its own, instead of reusing
    those of an earlier layer.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float
    steps: tuple[str, ...] = ("clamp", "norm", "rope")
    rms: bool = True
    eps: float = 1e-5
    head_eps: float = 0.0
    rotation: Rope = "halves"
    rope_width: int = 0
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    clamp: float = 0.0
    value_scale: float = 1.0
    l2_norm: bool = False
    tempered: bool = False
    gate: Gate = "sigmoid"
    slopes: Floats | None = None
    biased: bool = False
    keeps: bool = True


@dataclass(frozen=True)
class LatentAttentionSpec:
    """The computation of multi-head latent attention.

    plain_width: of a key's part that is not rotated; value_width: of a head's values. eps: of the norms of latents,
    key_eps of the rotated keys'. absorbed: the matrices that widen the latent are multiplied into queries and results,
    and caches keep latents; otherwise each head has keys and values.
    """

    heads: int
    latent_width: int
    plain_width: int
    rope_width: int
    value_width: int
    scale: float
    rms: bool = True
    eps: float = 1e-6
    key_eps: float = 1e-6
    rotation: Rope = "adjacent"
    rotates: bool = True
    window: int = 0
    tempered: bool = False
    gate: Gate = "sigmoid"
    absorbed: bool = True


def attention_spec(network: Network, index: int) -> AttentionSpec:
    """Return the spec of a layer built by `graph.attention.attention`."""
    hparams, block, own = network.hparams, network.block, network.hparams.layers[index]
    keeps = own.kv_source_layer is None
    steps = block.qkv_steps if keeps else tuple(step for step in ("norm", "rope"))
    return AttentionSpec(
        own.heads,
        own.kv_heads,
        own.key_width,
        own.value_width,
        float(own.attention_scale),
        steps,
        block.norm.startswith("rms"),
        float(hparams.eps),
        float(block.head_norm_epsilon),
        hparams.rope,
        own.rope_width if own.rotates else 0,
        own.window or 0,
        own.chunk or 0,
        float(hparams.attention_softcap or 0),
        float(hparams.clamp or 0),
        float(hparams.value_scale),
        own.qk_l2_norm,
        keeps and block.query_scale is not None,
        block.attention_gate,
        None if block.alibi_terms else alibi_slopes(network, own.heads),
        bool(hparams.alibi and block.alibi_terms),
        keeps,
    )


def latent_attention_spec(network: Network, layer: Layer) -> LatentAttentionSpec:
    """Return the spec of a layer built by `graph.latent_attention`."""
    keys, own, block = network.keys, network.hparams.layers[layer.index], network.block
    absorbed = "attn_k_b.weight" in layer
    latent = size_of(keys, own, "attention.kv_lora_rank")
    key_width = size_of(keys, own, "attention.key_length_mla") if absorbed else own.key_width
    plain = key_width - own.rope_width
    if absorbed:
        wide = layer.need("attn_v_b.weight").shape[1]
    else:
        wide = layer.need("attn_kv_b.weight").rows // own.heads - plain
    eps = float(keys.get("attention.latent_norm_epsilon") or keys.need("attention.layer_norm_rms_epsilon"))
    return LatentAttentionSpec(
        own.heads,
        latent,
        plain,
        own.rope_width,
        wide,
        attention_scale(keys, key_width),
        block.norm.startswith("rms"),
        eps,
        float(network.hparams.eps),
        network.hparams.rope,
        own.rotates or not absorbed,
        own.window or 0,
        absorbed and block.query_scale is not None,
        block.attention_gate,
        absorbed,
    )


class OperationList(Protocol):
    """The list that operations are appended to (see `graph.lowering.MachineList`)."""

    rows: list[Ints]

    def add(self, operation: Callable[[], int], fields: Fields, wait: bool = True) -> None: ...


@dataclass
class Workspace:
    """Memory that layers use one after the other, by purpose and size."""

    threads: int
    arrays: dict[tuple[str, int], Floats] = field(default_factory=dict)
    rows: dict[tuple[str, int], Vectors] = field(default_factory=dict)

    def array(self, name: str, size: int) -> Floats:
        return self.arrays.setdefault((name, size), aligned((size,)))

    def vectors(self, name: str, width: int, each: int = 0) -> Vectors:
        """Return a row for each token; with `each`, for each of so many heads and each token."""
        if each:
            return self.rows.setdefault((f"{each} {name}", width), vectors(width, each * MAX_TOKENS))
        return self.rows.setdefault((name, width), vectors(width))


@dataclass
class Bound:
    """Addresses of a layer's caches, and the rows of the list whose addresses may change.

    keys, values: for each slot the address of the layer's cache, int64. rotating, tempered, biased: rows that read the
    tables of angles, of factors and of terms; caching, attending: rows that depend on the cache type.
    """

    keys: Ints
    values: Ints
    rotating: list[int] = field(default_factory=list)
    tempered: list[int] = field(default_factory=list)
    biased: list[int] = field(default_factory=list)
    caching: list[int] = field(default_factory=list)
    attending: list[int] = field(default_factory=list)

    def put_angles(self, rows: Ints, cos: Floats, sin: Floats) -> None:
        """Set the rotation tables, (rows, half of the rotated width); the pass's state gives each token's row."""
        for row in self.rotating:
            rows[row, heads_of.COS], rows[row, heads_of.SIN] = cos.ctypes.data, sin.ctypes.data

    def put_factors(self, rows: Ints, factors: Floats) -> None:
        """Set the factors of queries, float32 by position."""
        rows[self.tempered, heads_of.FACTORS] = factors.ctypes.data

    def put_terms(self, rows: Ints, terms: Floats) -> None:
        """Set the terms added to scores, float32 (heads, positions)."""
        rows[self.biased, ops.TERMS], rows[self.biased, ops.TERMS_APART] = terms.ctypes.data, terms.shape[1]

    def put_cache_type(self, rows: Ints, cache_type: str) -> None:
        rows[self.caching + self.attending, heads_of.CACHE_TYPE] = heads_of.CACHE_TYPES[cache_type]
        rows[self.attending, thread_team.FUNCTION] = ops.ATTEND[cache_type]()


@dataclass
class Writer:
    """Appends a layer's operations to a list, with the layer's tensors, their bytes, and scratch memory."""

    operations: OperationList
    layer: Layer
    stored: Mapping[str, NDArray[np.uint8]]
    state: Ints
    workspace: Workspace
    bound: Bound

    def __post_init__(self) -> None:
        assert self.state.size >= SIZE

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self.layer

    def rows_of(self, name: str) -> int:
        return self.layer.need(f"{name}.weight").rows

    def add(self, operation: Callable[[], int], fields: Fields, wait: bool = True) -> int:
        """Append an operation; return the number of its row."""
        self.operations.add(operation, {heads_of.STATE: self.state} | fields, wait)
        return len(self.operations.rows) - 1

    def product(self, name: str, x: Vectors, out: Floats, wait: bool = True) -> None:
        """Add out (tokens, …) = x times a weight of the layer."""
        weight = self.layer.need(f"{name}.weight")
        fields = product_fields(
            x, weight, self.stored[weight.name], self.layer.array(f"{name}.bias"), out, False, self.state
        )
        self.operations.add(dots.OF_FORMAT[weight.format.name], fields, wait)

    def product_of_heads(self, name: str, x: Vectors, out: Floats) -> None:
        """Add a product for each head: its rows of x times its matrix of a weight (heads, rows, width), to out (tokens,
        heads, rows) or wider.
        """
        weight = self.layer.need(f"{name}.weight")
        heads, rows, width = weight.shape
        stored, bias = self.stored[weight.name], self.layer.array(f"{name}.bias")
        for head in range(heads):
            part = slice(head * MAX_TOKENS, (head + 1) * MAX_TOKENS)
            own = Vectors(x.floats[part], width, x.shorts[part], x.numbers[part])
            fields = product_fields(
                own,
                weight,
                stored[head * rows : (head + 1) * rows],
                None if bias is None else bias[head],
                out[:, head],
                False,
                self.state,
            )
            self.operations.add(dots.OF_FORMAT[weight.format.name], fields, head == heads - 1)

    def projected(self, name: str, x: Vectors, wait: bool = True) -> Vectors:
        out = self.workspace.vectors(name, self.rows_of(name))
        self.product(name, x, out.floats, wait)
        return out

    def normed(self, name: str, x: Vectors, eps: float, rms: bool, width: int = 0) -> Vectors:
        """Return the norm of the first numbers of each row, also as integers; x itself without a norm."""
        width = width or x.width
        weight, bias = self.layer.array(f"{name}.weight"), self.layer.array(f"{name}.bias")
        weight = self.layer.array(name) if weight is None else weight
        if weight is None:
            return x
        out = self.workspace.vectors(f"{name} normed", width)
        self.add(
            parts.rms_norm if rms else parts.layer_norm,
            {
                parts.X: x.floats,
                parts.X_WIDTH: x.room,
                parts.WIDTH: width,
                parts.WEIGHT: weight,
                parts.EPS: eps,
                parts.BIAS: np.zeros(width, np.float32) if bias is None else bias,
                **_output(out),
            },
        )
        return out


def _output(out: Vectors) -> Fields:
    return {
        heads_of.OUT: out.floats,
        heads_of.OUT_WIDTH: out.room,
        heads_of.SHORTS: out.shorts,
        heads_of.NUMBERS_AT: out.numbers,
    }


@dataclass
class Heads:
    """Heads in rows of tokens: a view of the first head, and the distance to the next one."""

    x: Floats
    count: int
    width: int
    apart: int = 0

    def fields(self, out: "Heads | None" = None) -> Fields:
        """Return fields of `prepare_heads` that read these heads and write to `to`, or in place."""
        out = out or self
        return {
            heads_of.X: self.x,
            heads_of.X_WIDTH: self.x.strides[0] // 4,
            heads_of.OUT: out.x,
            heads_of.OUT_WIDTH: out.x.strides[0] // 4,
            heads_of.HEADS: self.count,
            heads_of.HEAD_WIDTH: self.width,
            heads_of.X_APART: self.apart,
            heads_of.OUT_APART: out.apart,
        }


@dataclass
class Stage:
    """One operation of `prepare_heads`: step codes, fields, and whether it takes all heads of a token as one."""

    whole: bool = False
    codes: list[int] = field(default_factory=list)
    fields: Fields = field(default_factory=dict)
    rotates: bool = False
    tempered: bool = False

    @property
    def steps(self) -> int:
        return sum(code << 4 * i for i, code in enumerate(self.codes))


Prepared = tuple[Heads, Heads, list[Stage], Ints | None]  # from, to, what happens, and a table of caches


def _norm_fields(weight: Floats, bias: Floats | None, spec: AttentionSpec) -> tuple[int, Fields]:
    """Return code and fields of a head norm with weights."""
    each = weight.ndim == 2
    rms, eps = spec.rms and not (each and spec.head_eps), (each and spec.head_eps) or spec.eps
    fields: Fields = {heads_of.WEIGHT: np.ascontiguousarray(weight), heads_of.EPS: float(eps)}
    fields[heads_of.WEIGHT_APART] = weight.shape[1] if each else 0
    if bias is not None and (each or not rms):
        fields[heads_of.BIAS] = np.ascontiguousarray(bias)
    return (heads_of.RMS if rms else heads_of.LAYER), fields


def _stages(spec: AttentionSpec, writer: Writer, name: str, heads: int, width: int) -> list[Stage]:
    """Return the steps on queries ("attn_q"), keys ("attn_k") or values ("attn_v") before attention."""
    stages, values = [Stage()], name == "attn_v"
    weight, bias = writer.layer.array(f"{name}_norm.weight"), writer.layer.array(f"{name}_norm.bias")

    def add(code: int, fields: Fields) -> None:
        if stages[-1].whole and code not in (heads_of.CLAMP, heads_of.MULTIPLY, heads_of.RMS, heads_of.LAYER):
            stages.append(Stage())
        stages[-1].codes.append(code)
        stages[-1].fields |= fields

    for step in spec.steps:
        if step == "clamp" and spec.clamp:
            add(heads_of.CLAMP, {heads_of.LIMIT: spec.clamp})
        elif step == ("norm_values" if values else "norm_without_weights") and (values or spec.l2_norm):
            add(heads_of.PLAIN_RMS, {heads_of.PLAIN_EPS: spec.eps})
        elif step == "norm" and not values and weight is not None:
            code, fields = _norm_fields(weight, bias, spec)
            whole = weight.shape == (heads * width,) and heads > 1
            if whole and set(stages[-1].codes) - {heads_of.CLAMP, heads_of.MULTIPLY}:
                stages.append(Stage())
            stages[-1].whole = whole
            add(code, fields)
        elif step == "rope" and not values and spec.rope_width:
            add(
                heads_of.HALVES if spec.rotation == "halves" else heads_of.ADJACENT,
                {heads_of.HALF: spec.rope_width // 2},
            )
            stages[-1].rotates = True
    if values and spec.value_scale != 1:
        add(heads_of.MULTIPLY, {heads_of.SCALE: spec.value_scale})
    if name == "attn_q" and spec.tempered:
        add(heads_of.MULTIPLY, {heads_of.SCALE: 1.0})
        stages[-1].tempered = True
    return stages


def _write_stages(writer: Writer, prepared: Sequence[Prepared]) -> None:
    """Add the stages from one place to another, and to the caches of a table. Threads wait only after each stage."""
    last = max(len(stages) for *_, stages, _ in prepared) - 1
    for i in range(last + 1):
        own = [each for each in prepared if i < len(each[2])]
        for source, out, stages, table in own:
            stage, wait = stages[i], source is own[-1][0]
            fields = (source if i == 0 else out).fields(out)
            if stage.whole:
                fields |= {heads_of.HEADS: 1, heads_of.HEAD_WIDTH: source.count * source.width}
            keeps = table is not None and i == len(stages) - 1
            if keeps:
                fields |= {heads_of.CACHE: table}
            row = writer.add(heads_of.prepare_heads, fields | stage.fields | {heads_of.STEPS: stage.steps}, wait)
            writer.bound.rotating += [row] * stage.rotates
            writer.bound.tempered += [row] * stage.tempered
            writer.bound.caching += [row] * keeps


def write_attention(writer: Writer, spec: AttentionSpec, x: Vectors) -> Vectors:
    """Add the operations of a layer's self-attention over x; return the input of `attn_output`."""
    q, k, v, gate = _queries_keys_values(writer, spec, x)
    plan: list[Prepared] = [(q, q, _stages(spec, writer, "attn_q", spec.heads, spec.key_width), None)]
    if k is not None and v is not None:
        made, stages = v, _stages(spec, writer, "attn_v", spec.kv_heads, spec.value_width)
        if v.x is k.x:  # keys that are values as well: a copy
            made = Heads(writer.workspace.vectors("values", v.count * v.width).floats, v.count, v.width, v.width)
        plan.append((v, made, stages, writer.bound.values))
        own = _stages(spec, writer, "attn_k", spec.kv_heads, spec.key_width)
        if v.x is k.x and any(stage.whole for stage in own):
            own.insert(0, Stage())  # values are copied by other threads first
        plan.append((k, k, own, writer.bound.keys))
    _write_stages(writer, plan)
    partial = _write_attend(writer, spec, q, True)
    out = writer.workspace.vectors("mixed", spec.heads * spec.value_width)
    return _finished(writer, out, partial, gate, spec.rms, spec.eps)


def _queries_keys_values(
    writer: Writer, spec: AttentionSpec, x: Vectors
) -> tuple[Heads, Heads | None, Heads | None, Fields]:
    """Add the products; return where queries, keys and values are (None for keys and values of another layer), and
    fields of gates.
    """
    twice = 2 if "gates" in spec.steps else 1  # gates follow each head's query
    counts = (spec.heads, spec.kv_heads, spec.kv_heads)
    widths, gate = (spec.key_width, spec.key_width, spec.value_width), _written_gate(writer, spec, x)
    if "attn_qkv" in writer:
        fused = writer.projected("attn_qkv", x).floats
        starts = (0, counts[0] * widths[0], counts[0] * widths[0] + counts[1] * widths[1])
        views = [fused[:, start:] for start in starts]
    else:
        names = [name for name in ("attn_q", "attn_k", "attn_v") if name in writer][: 3 if spec.keeps else 1]
        views = [writer.projected(name, x, name == names[-1]).floats for name in names]
        views += [views[-1]] * (3 - len(views))
    q, k, v = (Heads(view, n, width, width) for view, n, width in zip(views, counts, widths, strict=True))
    if twice == 2:
        q.apart = 2 * spec.key_width
        if not gate:
            gates = q.x[:, spec.key_width :]
            gate = {ops.GATE: gates, ops.GATE_WIDTH: gates.strides[0] // 4, ops.GATE_APART: q.apart}
            gate[ops.GATE_TYPE] = GATES[spec.gate]
    return q, k if spec.keeps else None, v if spec.keeps else None, gate


def _written_gate(writer: Writer, spec: AttentionSpec | LatentAttentionSpec, x: Vectors) -> Fields:
    """Add the product of a gate's own weight; return the gate's fields, for each value or each head."""
    if "attn_gate" not in writer:
        return {}
    gates = writer.projected("attn_gate", x, False)
    of_head = gates.width == spec.heads and spec.value_width > 1
    return {
        ops.GATE: gates.floats,
        ops.GATE_WIDTH: gates.room,
        ops.GATE_APART: 1 if of_head else spec.value_width,
        ops.GATE_TYPE: GATES[spec.gate],
        ops.GATE_OF_HEAD: of_head,
    }


def _write_attend(writer: Writer, spec: AttentionSpec, q: Heads, values: bool) -> Fields:
    """Add attention over the caches; return fields of `finish_heads` that locate the partial results."""
    group, room = (spec.heads // spec.kv_heads, division.scratch_room(spec.kv_heads, spec.key_width, spec.value_width))
    max_parts = division.max_parts(group)
    partial = division.partial_room(spec.heads, spec.value_width, max_parts, MAX_TOKENS)
    shape: Fields = {
        heads_of.HEADS: group,
        division.GROUPS: spec.kv_heads,
        division.VALUE_WIDTH: spec.value_width,
        division.WINDOW: spec.window,
        division.CHUNK: spec.chunk,
        division.PARTIAL: writer.workspace.array("partial", partial),
        division.PARTS: max_parts,
    }
    row = writer.add(
        ops.ATTEND["f32"],
        shape
        | {
            heads_of.X: q.x,
            heads_of.X_WIDTH: q.x.strides[0] // 4,
            heads_of.X_APART: q.apart,
            heads_of.HEAD_WIDTH: spec.key_width,
            ops.ALL_KEYS: writer.bound.keys,
            ops.ALL_VALUES: writer.bound.values if values else 0,
            heads_of.SCALE: spec.scale,
            ops.CAP: spec.softcap,
            ops.SLOPES: 0 if spec.slopes is None else spec.slopes,
            ops.ROOM: room,
            ops.SCRATCH: writer.workspace.array("scratch", room * writer.workspace.threads),
        },
    )
    writer.bound.attending.append(row)
    writer.bound.biased += [row] * spec.biased
    sinks = writer.layer.array("attn_sinks.weight")
    return shape | {ops.SINKS: 0 if sinks is None else sinks}


def _finished(writer: Writer, out: Vectors, partial: Fields, gate: Fields, rms: bool, eps: float) -> Vectors:
    """Add the last operation, with gates and the norm after attention; return the outputs of all heads."""
    writer.add(ops.finish_heads, partial | gate | _output(out))
    return writer.normed("attn_sub_norm", out, eps, rms)


def write_latent_attention(writer: Writer, spec: LatentAttentionSpec, x: Vectors) -> Vectors:
    """Add the operations of multi-head latent attention; return the input of `attn_output`."""
    low, name = x, "attn_q"
    if "attn_q_a" in writer:
        low, name = writer.normed("attn_q_a_norm", writer.projected("attn_q_a", x), spec.eps, spec.rms), "attn_q_b"
    q = writer.projected(name, low, False).floats
    gate = _written_gate(writer, spec, x)
    compressed = writer.projected("attn_kv_a_mqa", x)
    return (_absorbed if spec.absorbed else _widened)(writer, spec, q, compressed, gate)


def _rope(spec: LatentAttentionSpec) -> Stage:
    code = heads_of.HALVES if spec.rotation == "halves" else heads_of.ADJACENT
    return Stage(codes=[code] * spec.rotates, fields={heads_of.HALF: spec.rope_width // 2}, rotates=spec.rotates)


def _key_norm(writer: Writer, spec: LatentAttentionSpec, name: str, eps: float) -> Stage:
    """Return a norm of the latent or of the rotated key, where the layer has it."""
    weight, bias = writer.layer.array(f"{name}.weight"), writer.layer.array(f"{name}.bias")
    if weight is None:
        return Stage()
    fields: Fields = {heads_of.WEIGHT: weight, heads_of.EPS: eps}
    if bias is not None and not spec.rms:
        fields[heads_of.BIAS] = bias
    return Stage(codes=[heads_of.RMS if spec.rms else heads_of.LAYER], fields=fields)


def _absorbed(writer: Writer, spec: LatentAttentionSpec, q: Floats, compressed: Vectors, gate: Fields) -> Vectors:
    heads, latent, plain, rotated = spec.heads, spec.latent_width, spec.plain_width, spec.rope_width
    key_width, made = latent + rotated, Heads(q, heads, plain, plain + rotated)
    query = writer.workspace.vectors("query", heads * key_width).floats
    asked = writer.workspace.vectors("plain queries", plain, heads)
    factor: Fields = {heads_of.SCALE: 1.0} if spec.tempered else {}
    rope, codes = _rope(spec), [heads_of.MULTIPLY] * spec.tempered
    packed: Fields = {heads_of.OUT_APART: MAX_TOKENS * asked.room, heads_of.STEPS: Stage(codes=codes).steps} | factor
    rows = [writer.add(heads_of.prepare_heads, made.fields() | _output(asked) | packed, False)]
    turned, to = Heads(q[:, plain:], heads, rotated, made.apart), Heads(query[:, latent:], heads, rotated, key_width)
    rope.codes += codes
    rows.append(_stage(writer, turned.fields(to) | factor, rope, False))
    writer.bound.tempered += rows * spec.tempered
    key = writer.workspace.vectors("key", key_width).floats
    whole, turned = Heads(key, 1, key_width), Heads(compressed.floats[:, latent:], 1, rotated)
    norm, key_norm, rope = (
        _key_norm(writer, spec, "attn_kv_a_norm", spec.eps),
        _key_norm(writer, spec, "attn_k_norm", spec.key_eps),
        _rope(spec),
    )
    rope.codes, rope.fields = key_norm.codes + rope.codes, key_norm.fields | rope.fields
    _stage(writer, Heads(compressed.floats, 1, latent).fields(whole), norm, False)
    _stage(writer, turned.fields(Heads(key[:, latent:], 1, rotated)), rope, False)
    writer.bound.caching.append(_stage(writer, whole.fields() | {heads_of.CACHE: writer.bound.keys}, Stage(), True))
    writer.product_of_heads("attn_k_b", asked, query[:, : heads * key_width].reshape(MAX_TOKENS, heads, key_width))
    narrow = AttentionSpec(heads, 1, key_width, latent, spec.scale, window=spec.window)
    partial = _write_attend(writer, narrow, Heads(query, heads, key_width, key_width), False)
    mixed = writer.workspace.vectors("mixed latents", latent, heads)
    apart: Fields = {heads_of.OUT_APART: MAX_TOKENS * mixed.room, ops.ROW_EACH: 1}
    writer.add(ops.finish_heads, partial | _output(mixed) | apart)
    out = writer.workspace.vectors("mixed", heads * spec.value_width)
    values = out.floats[:, : heads * spec.value_width].reshape(MAX_TOKENS, heads, spec.value_width)
    writer.product_of_heads("attn_v_b", mixed, values)
    shape: Fields = {heads_of.HEADS: heads, division.GROUPS: 1, division.VALUE_WIDTH: spec.value_width}
    return _finished(writer, out, shape, gate, spec.rms, spec.key_eps)


def _stage(writer: Writer, fields: Fields, stage: Stage, wait: bool) -> int:
    row = writer.add(heads_of.prepare_heads, fields | stage.fields | {heads_of.STEPS: stage.steps}, wait)
    writer.bound.rotating += [row] * stage.rotates
    return row


def _widened(writer: Writer, spec: LatentAttentionSpec, q: Floats, compressed: Vectors, gate: Fields) -> Vectors:
    """Add attention with keys and values of each head."""
    heads, latent, plain, rotated = spec.heads, spec.latent_width, spec.plain_width, spec.rope_width
    key_width = plain + rotated
    normed = writer.normed("attn_kv_a_norm", compressed, spec.eps, spec.rms, latent)
    turned = Heads(q[:, plain:], heads, rotated, key_width)
    _stage(writer, turned.fields(), _rope(spec), False)
    wide = writer.projected("attn_kv_b", normed).floats
    apart = plain + spec.value_width
    key = writer.workspace.vectors("key", heads * key_width).floats
    whole = Heads(key, heads, key_width, key_width)
    _stage(writer, Heads(wide, heads, plain, apart).fields(whole), Stage(), False)
    shared = Heads(compressed.floats[:, latent:], heads, rotated)
    _stage(writer, shared.fields(Heads(key[:, plain:], heads, rotated, key_width)), _rope(spec), False)
    writer.bound.caching.append(_stage(writer, whole.fields() | {heads_of.CACHE: writer.bound.keys}, Stage(), False))
    values = Heads(wide[:, plain:], heads, spec.value_width, apart)
    kept = values.fields() | {heads_of.CACHE: writer.bound.values}
    writer.bound.caching.append(_stage(writer, kept, Stage(), True))
    plainly = AttentionSpec(heads, heads, key_width, spec.value_width, spec.scale)
    partial = _write_attend(writer, plainly, Heads(q, heads, key_width, key_width), True)
    out = writer.workspace.vectors("mixed", heads * spec.value_width)
    return _finished(writer, out, partial, gate, spec.rms, spec.key_eps)
