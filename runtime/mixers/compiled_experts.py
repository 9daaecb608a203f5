"""A layer's experts as compiled operations for a few tokens (see `kernels.expert_operations`).

Threads wait four times: for the router's logits, for gate and up projections, for the activation, and at the end. The
weights of an expert are read once, however many tokens chose it; those of other experts are not read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.spec import sum_factor, weigh_input, weigh_output
from quants import Tensor, from_array

from ..arrays import Floats
from ..kernels import dots
from ..kernels import expert_operations as of_experts
from ..kernels import token_parts as parts
from ..layer import Layer, Network
from ..products.gemv import MAX_TOKENS, Vectors, aligned, product_fields, stored_rows, vectors

STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps")
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
SERVED = {f"{name}.{part}" for name in (*STACKS, *SHARED, "ffn_gate_inp") for part in ("weight", "bias")} | {
    "ffn_gate_inp.scale",
    "ffn_gate_inp_shexp.weight",
    "exp_probs_b",
    "exp_probs_b.bias",
    "ffn_down_exps.scale",
}
BEFORE = {"ffn_norm_exps.weight", "ffn_norm_exps.bias"}  # of what experts are given
OF_EXPERTS = ("exps", "shexp", "ffn_gate_inp", "exp_probs_b", "ffn_gate_tid2eid", "ffn_latent", "ffn_routed")


class OperationList(Protocol):
    """The list that operations are appended to (see `graph.lowering.MachineList`)."""

    def add(self, operation: Callable[[], int], fields: dict[int, Any], wait: bool = True) -> None: ...


@dataclass(frozen=True)
class Weight:
    """A weight with its bytes, (rows, bytes of a row), or those of all experts one after the other."""

    tensor: Tensor
    stored: NDArray[np.uint8]
    bias: Floats | None = None
    experts: int = 1

    @property
    def rows(self) -> int:
        """Return the rows of one expert."""
        return len(self.stored) // self.experts


@dataclass(frozen=True)
class Routing:
    """How a router's logits become a choice (see `graph.net.route`)."""

    experts: int
    used: int
    scoring: str
    normalizes: bool = False
    scale: float = 1.0
    groups: int = 0
    groups_used: int = 0
    softcap: float = 0.0
    correction: Floats | None = None  # (experts,), added to the scores for the choice alone
    of_expert: Floats | None = None  # (experts,), factors of the weights


@dataclass(frozen=True)
class Net:
    """down(activation(gate x) * up x); gate: None where up has both, the gate first, or where nothing is gated."""

    gate: Weight | None
    up: Weight
    down: Weight
    activation: str
    gated: bool = True
    limit: float = np.inf  # of the activation, and of what it is multiplied with on both sides
    clamps_gate_first: bool = True


@dataclass(frozen=True)
class ExpertsSpec:
    """The experts of a layer. threads: the maximum that will run the operations."""

    routing: Routing
    router: Weight
    net: Net
    threads: int
    router_norm: tuple[Floats, float] | None = None  # weights and epsilon of the RMS norm of what the router reads
    weighs_input: bool = False  # weights multiply what experts are given, not what they give
    shared: Net | None = None
    shared_gate: Weight | None = None  # one row; its sigmoid is a factor of what the shared expert gives


@dataclass
class Rooms:
    """Memory that layers reuse one after the other."""

    known: dict[tuple[str, int, int], Any] = field(default_factory=dict)

    def vectors(self, use: str, width: int, rows: int) -> Vectors:
        key = (use, width, rows)
        if key not in self.known:
            self.known[key] = vectors(width, rows)
        made: Vectors = self.known[key]
        return made

    def numbers(self, use: str, size: int, threads: int) -> NDArray[np.int64]:
        key = (use, size, threads)
        if key not in self.known:
            self.known[key] = aligned((threads, size), np.int64)
        made: NDArray[np.int64] = self.known[key]
        return made


def supports(network: Network, layer: Layer) -> bool:
    """Return whether `add_experts` computes all of a layer's experts and its shared expert.

    Not supported: the sparsemixer, experts chosen by token ids, experts of groups (Grove MoE), latent inputs,
    activations with trained numbers (situ, xielu), other than plain sums of routed and shared experts, and formats that
    are not multiplied from their blocks.
    """
    block, hparams, own = network.block, network.hparams, network.hparams.layers[layer.index]
    names = {name for name in layer.tensors if any(part in name for part in OF_EXPERTS)} - BEFORE
    weights = [layer.need(name) for name in names if name.endswith(("exps.weight", "shexp.weight"))]
    shared = "ffn_up_shexp.weight" in names
    limited = own.experts_limit or (shared and own.net_limit)
    return bool(
        {"ffn_gate_inp.weight", "ffn_down_exps.weight"} <= names <= SERVED
        and ("ffn_gate_up_exps.weight" in names or "ffn_up_exps.weight" in names)
        and (not block.gated or "ffn_gate_exps.weight" in names or "ffn_gate_up_exps.weight" in names)
        and hparams.scoring in of_experts.SCORINGS
        and hparams.activation in of_experts.ACTIVATIONS
        and not (limited and hparams.activation == "swiglu_oai")
        and block.weigh_expert in (weigh_output, weigh_input)
        and (not shared or (sum_factor(block.add_shared_expert) is not None and own.sparsity is None))
        and (not shared or "ffn_sub_norm.weight" not in layer)
        and layer.need("ffn_gate_inp.weight").rows % max(1, hparams.expert_groups) == 0
        and all(weight.format.name in dots.OF_FORMAT for weight in weights)
    )


def experts_spec(network: Network, layer: Layer, threads: int) -> ExpertsSpec:
    """Return the experts of a layer that `supports` accepts."""
    block, hparams, own = network.block, network.hparams, network.hparams.layers[layer.index]
    router = layer.need("ffn_gate_inp.weight")
    if router.format.name not in dots.OF_FLOATS:  # as texts do, whose choice it is to be
        router = from_array(router.name, layer.need_array("ffn_gate_inp.weight"))
    groups = (hparams.expert_groups, hparams.expert_groups_used)
    routing = Routing(
        router.rows,
        min(own.experts_used, router.rows),
        hparams.scoring,
        hparams.normalize_experts,
        hparams.experts_scale,
        *(groups if groups[0] > groups[1] else (0, 0)),
        hparams.router_softcap or 0.0,
        layer.array("exp_probs_b.bias" if "exp_probs_b.bias" in layer else "exp_probs_b"),
        layer.array("ffn_down_exps.scale"),
    )
    norm = layer.array("ffn_gate_inp.scale")
    spec = ExpertsSpec(
        routing,
        Weight(router, stored_rows(router), layer.array("ffn_gate_inp.bias")),
        _net(network, layer, "exps", own.experts_limit),
        threads,
        None if norm is None else (norm * np.float32(router.width**-0.5), float(hparams.eps)),
        block.weigh_expert is weigh_input,
    )
    if "ffn_up_shexp.weight" in layer:
        gate = _weight(layer, "ffn_gate_inp_shexp") if "ffn_gate_inp_shexp.weight" in layer else None
        spec = replace(spec, shared=_net(network, layer, "shexp", own.net_limit), shared_gate=gate)
    return spec


def _weight(layer: Layer, name: str, experts: int = 1) -> Weight:
    tensor = layer.need(f"{name}.weight")
    return Weight(tensor, stored_rows(tensor), layer.array(f"{name}.bias"), experts)


def _net(network: Network, layer: Layer, suffix: str, limit: float | None) -> Net:
    block, hparams = network.block, network.hparams
    experts = layer.need("ffn_gate_inp.weight").rows if suffix == "exps" else 1
    fused = f"ffn_gate_up_{suffix}.weight" in layer
    gate = None
    if not fused and block.gated and f"ffn_gate_{suffix}.weight" in layer:
        gate = _weight(layer, f"ffn_gate_{suffix}", experts)
    up, down = (_weight(layer, f"ffn_{name}_{suffix}", experts) for name in ("gate_up" if fused else "up", "down"))
    if hparams.activation == "swiglu_oai":
        return Net(gate, up, down, hparams.activation, True, hparams.activation_limit)
    return Net(gate, up, down, hparams.activation, block.gated or fused, limit or np.inf, block.clamps_gate_first)


@dataclass(frozen=True)
class Choice:
    """Addresses of the experts that tokens chose: a row for each thread (see `kernels.dots`)."""

    rows: NDArray[np.int64]
    used: int

    def fields(self, names: Any) -> dict[int, Any]:
        """Return the fields of a choice. names: the module of the operation."""
        return {names.CHOICE: self.rows, names.APART: self.rows.strides[0], names.USED: self.used}


def add_choice(
    operations: OperationList, spec: ExpertsSpec, x: Vectors, state: NDArray[np.int64], rooms: Rooms
) -> Choice:
    """Add the choice of experts. x: the router's input, with its integers."""
    routing = spec.routing
    size = of_experts.choice_bytes(routing.experts, routing.used, routing.groups) // 8
    choice = Choice(rooms.numbers("choice", size, spec.threads), routing.used)
    writer = _Writer(operations, rooms, state, choice)
    if spec.router_norm:
        x = writer.add_norm(x, *spec.router_norm)
    logits = rooms.vectors("router", routing.experts, MAX_TOKENS)
    writer.add_product(x, spec.router, logits.floats, wait=True)
    operations.add(
        of_experts.choose,
        choice.fields(of_experts)
        | {
            of_experts.STATE: state,
            of_experts.X: logits.floats,
            of_experts.X_WIDTH: logits.room,
            of_experts.EXPERTS: routing.experts,
            of_experts.SCORING: of_experts.SCORINGS[routing.scoring],
            of_experts.NORMALIZES: routing.normalizes,
            of_experts.GROUPS: routing.groups,
            of_experts.CORRECTION: 0 if routing.correction is None else routing.correction,
            of_experts.OF_EXPERT: 0 if routing.of_expert is None else routing.of_expert,
            of_experts.GROUPS_USED: routing.groups_used,
            of_experts.CAP: float(routing.softcap),
            of_experts.SCALE: float(routing.scale),
        },
        wait=False,
    )
    return choice


@dataclass(frozen=True)
class Output:
    """Where a layer's experts write: `scale` times their sum, added to what is in `rows` if `adds`."""

    rows: Vectors
    adds: bool = False
    scale: float = 1.0


def add_experts(
    operations: OperationList,
    spec: ExpertsSpec,
    x: Vectors,
    output: Output,
    state: NDArray[np.int64],
    *,
    rooms: Rooms | None = None,
    choice: Choice | None = None,
) -> None:
    """Add the operations of a layer's experts.

    x: the input of the pass's tokens, with their integers. rooms: memory shared with other layers, which run at other
    times. choice: that of a router that reads something else than x.
    """
    rooms = Rooms() if rooms is None else rooms
    choice = add_choice(operations, spec, x, state, rooms) if choice is None else choice
    writer, gate = _Writer(operations, rooms, state, choice), None
    if spec.shared_gate:
        gate = rooms.vectors("shared gate", 1, MAX_TOKENS)
        writer.add_product(x, spec.shared_gate, gate.floats, wait=False)
    nets = [(spec.net, True), (spec.shared, False)] if spec.shared else [(spec.net, True)]
    last = len(nets) - 1  # threads wait for both
    inner = [writer.add_first(*net, x, wait=i == last) for i, net in enumerate(nets)]
    weighs = spec.weighs_input
    hidden = [writer.add_activation(*net, *inner[i], weighs, wait=i == last) for i, net in enumerate(nets)]
    given = [writer.add_down(*net, hidden[i]) for i, net in enumerate(nets)]
    fields = choice.fields(of_experts) | {
        of_experts.STATE: state,
        of_experts.X: given[0].floats,
        of_experts.X_WIDTH: given[0].room,
        of_experts.OUT: output.rows.floats,
        of_experts.OUT_WIDTH: output.rows.room,
        of_experts.WIDTH: spec.net.down.rows,
        of_experts.SCALE: float(output.scale),
        of_experts.ADDS: output.adds,
        of_experts.WEIGHS: not weighs,
    }
    if spec.shared:
        fields |= {of_experts.SHARED: given[1].floats, of_experts.SHARED_WIDTH: given[1].room}
    if gate:
        fields |= {of_experts.SHARED_GATE: gate.floats, of_experts.GATE_WIDTH: gate.room}
    operations.add(of_experts.add_up, fields)


@dataclass(frozen=True)
class _Writer:
    """What the operations of a layer's experts share. chosen: the net is that of experts, not a shared one."""

    operations: OperationList
    rooms: Rooms
    state: NDArray[np.int64]
    choice: Choice

    def add_norm(self, x: Vectors, weights: Floats, eps: float) -> Vectors:
        out = self.rooms.vectors("router's input", x.width, MAX_TOKENS)
        self.operations.add(
            parts.rms_norm,
            {
                parts.STATE: self.state,
                parts.X: x.floats,
                parts.X_WIDTH: x.room,
                parts.WIDTH: x.width,
                parts.WEIGHT: weights,
                parts.EPS: eps,
                parts.OUT: out.floats,
                parts.OUT_WIDTH: out.room,
            },
        )
        return out

    def add_product(
        self, x: Vectors, weight: Weight, out: Floats, wait: bool, chosen: bool = False, of_tokens: bool = True
    ) -> None:
        fields = product_fields(x, weight.tensor, weight.stored, weight.bias, out, False, self.state)
        if chosen:
            fields |= {dots.ROWS: weight.rows, dots.OF_TOKENS: of_tokens} | self.choice.fields(dots)
        self.operations.add(dots.OF_FORMAT[weight.tensor.format.name], fields, wait)

    def _vectors(self, use: str, width: int, chosen: bool) -> Vectors:
        rows = MAX_TOKENS * self.choice.used if chosen else MAX_TOKENS
        return self.rooms.vectors(f"{use} of {'experts' if chosen else 'all'}", width, rows)

    def add_first(self, net: Net, chosen: bool, x: Vectors, wait: bool) -> tuple[Vectors | None, Vectors]:
        """Return gate and up projections; None for the gate where up has both, or nothing is gated."""
        gate, up = None, self._vectors("up", net.up.rows, chosen)
        if net.gate:
            gate = self._vectors("gate", net.gate.rows, chosen)
            self.add_product(x, net.gate, gate.floats, False, chosen)
        self.add_product(x, net.up, up.floats, wait, chosen)
        return gate, up

    def add_activation(
        self, net: Net, chosen: bool, gate: Vectors | None, up: Vectors, weighs: bool, wait: bool
    ) -> Vectors:
        """Return the net's hidden values. weighs: times the weights of experts."""
        width = net.down.tensor.width
        out, first = self._vectors("hidden", width, chosen), up if gate is None else gate
        fields = {
            of_experts.STATE: self.state,
            of_experts.X: first.floats,
            of_experts.X_WIDTH: first.room,
            of_experts.OUT: out.floats,
            of_experts.OUT_WIDTH: out.room,
            of_experts.WIDTH: width,
            of_experts.SHORTS: out.shorts,
            of_experts.NUMBERS_AT: out.numbers,
            of_experts.ACTIVATION: of_experts.ACTIVATIONS[net.activation],
            of_experts.LIMIT: float(net.limit),
            of_experts.CLAMPS: of_experts.CLAMPS_GATE if net.clamps_gate_first else of_experts.CLAMPS_ACTIVATED,
        }
        if net.gated:
            fields |= {of_experts.Y: up.floats[:, width if gate is None else 0 :], of_experts.Y_WIDTH: up.room}
        if chosen:
            fields[of_experts.USED] = self.choice.used
        if chosen and weighs:
            fields |= self.choice.fields(of_experts)
        self.operations.add(of_experts.activate, fields, wait)
        return out

    def add_down(self, net: Net, chosen: bool, hidden: Vectors) -> Vectors:
        """Return the down projections. Threads do not wait after it: each adds up the rows that it made."""
        out = self._vectors("down", net.down.rows, chosen)
        self.add_product(hidden, net.down, out.floats, False, chosen, of_tokens=False)
        return out
