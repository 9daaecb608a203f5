"""Build the graph of one step of a model as llama.cpp does: inputs, norms, products with weights, caches."""

from __future__ import annotations

from collections.abc import Sequence

from . import nodes
from .caches import LayerCache, layer_caches
from .description import TABLE, Described, Settings
from .nodes import Graph, Node, leaf
from .placement import Placement

WITHOUT_MIXED = ("cogvlm", "deepseek4", "graniteswitch", "eagle3", "dflash", "gemma4-assistant")


class Build:
    """A graph under construction.

    tokens: of the step. rows: of the logits. placement: where weights and caches are.
    """

    def __init__(self, model: Described, settings: Settings, placement: Placement) -> None:
        self.model, self.settings, self.graph, self.placement = model, settings, Graph(), placement
        self.tokens, self.rows = settings.tokens, settings.rows
        self.sequences = settings.sequences
        self.caches: tuple[LayerCache, ...] = layer_caches(model, settings)
        self.inputs: dict[str, Node] = {}
        self.stored: dict[str, Node] = {}
        self.first_value: Node | None = None
        self.wide = leaf("F32", 0)

    @property
    def each(self) -> int:
        """Return the tokens of each sequence."""
        return self.tokens // self.sequences

    def weight(self, role: str, layer: int | None = None) -> Node | None:
        """Return a weight of the file, or None."""
        roles = self.model.outside if layer is None else self.model.roles(layer)
        tensor = roles.get(role) or roles.get(f"{role}.weight")
        if tensor is None:
            return None
        key = f"{layer}.{role}"
        if key not in self.stored:
            kind = tensor.format.name
            name = role if layer is None else f"blk.{layer}.{role}"
            made = leaf(kind, *tensor.shape[::-1], name=name, stored=True, weight=True)
            made.place = self.placement.of_tensor(self.model, role, layer)
            self.stored[key] = made
        return self.stored[key]

    def outer_weight(self, layer: int, role: str) -> Node | None:
        """Return a weight outside of the layers that is loaded again wherever layers are."""
        tensor = self.model.outside.get(f"{role}.weight")
        place = self.placement.of_layer(self.model, layer)
        key = f"{place} {role}"
        if tensor is not None and key not in self.stored:
            made = leaf(tensor.format.name, *tensor.shape[::-1], name=role, stored=True, weight=True)
            made.place = place
            self.stored[key] = made
        return self.stored.get(key)

    def output_matrix(self) -> Node | None:
        """Return the matrix of logits: where there is none, the embeddings, a second time."""
        made = self.weight("output")
        table = self.model.outside.get(TABLE)
        if made is None and table is not None:
            made = leaf(table.format.name, *table.shape[::-1], name="output", stored=True, weight=True)
            made.place = self.placement.of_output(self.model)
        return made

    def need(self, role: str, layer: int | None = None) -> Node:
        """Return a weight that its layer cannot lack."""
        node = self.weight(role, layer)
        if node is None:
            raise KeyError(role)
        return node

    def input(self, name: str, kind: str, *sizes: int) -> Node:
        """Return an input of the graph, the same one for a name."""
        if name not in self.inputs:
            self.inputs[name] = leaf(kind, *sizes, name=name)
        return self.inputs[name]

    def cache(self, name: str, layer: int, kind: str, *sizes: int) -> Node:
        """Return a layer's cache."""
        key = f"cache {name} {layer}"
        if key not in self.stored:
            self.stored[key] = leaf(kind, *sizes, name=key, stored=True)
            self.stored[key].place = self.placement.of_layer(self.model, layer)
        return self.stored[key]

    def positions(self) -> Node:
        """Return the tokens' positions."""
        sections = any(self.model.hparams.rope_sections)
        return self.input("positions", "I32", self.tokens * (4 if sections else 1))

    def norm(self, x: Node, role: str, layer: int | None = None) -> Node:
        """Normalize rows, with the weights and the bias that the file has."""
        kind = self.model.architecture.block.norm
        weight, bias = self.weight(role, layer), self.weight(f"{role}.bias", layer)
        made = nodes.same("norm" if kind.startswith("layer") else "rms_norm", x)
        if weight is not None:
            made = nodes.mul(made, weight)
        return made if bias is None else nodes.add(made, bias)

    def product(self, role: str, x: Node, layer: int | None = None) -> Node:
        """Multiply with a matrix, and add its bias and its factor if there are any."""
        made = nodes.mul_mat(self.need(role, layer), x)
        bias, factor = self.weight(f"{role}.bias", layer), self.weight(f"{role}.scale", layer)
        if factor is not None:
            made = nodes.mul(made, factor)
        return made if bias is None else nodes.add(made, bias)

    def has(self, role: str, layer: int) -> bool:
        """Return whether a layer has a tensor."""
        return self.weight(role, layer) is not None

    def embedded(self) -> Node:
        """Return the embeddings of the step's tokens, with the branches for images that llama.cpp keeps in graphs."""
        model, graph, count = self.model, self.graph, self.tokens
        table = self.need("token_embd")
        width = table.shape[0] * (1 + model.number("n_deepstack_layers"))
        extra = width - table.shape[0]

        def looked_up(ids: Node) -> Node:
            rows = nodes.get_rows(table, ids)
            return nodes.pad(rows, extra) if extra else rows

        made = looked_up(self.input("tokens", "I32", count))
        branches = [made, self.input("embeddings", "F32", width, count)]
        if model.architecture.name not in WITHOUT_MIXED:
            ids = self.input("mixed tokens", "I32", count)
            target = nodes.same("dup", self.input("mixed embeddings", "F32", width, count))
            slots = self.input("mixed slots", "I64", count)
            branches.append(nodes.set_rows(target, looked_up(ids), slots))
        for branch in branches:
            graph.expand(branch)
        self.wide = made
        if extra:
            made = nodes.view(made, (table.shape[0], count), made.strides[1:])
        return made

    def last_rows(self, *each: Node) -> list[Node]:
        """Return the rows of the tokens whose logits are wanted."""
        ids = self.input("outputs", "I32", self.rows)
        return [nodes.get_rows(x, ids) for x in each]

    def expand(self, each: Sequence[Node]) -> None:
        """Append tensors in this order."""
        for node in each:
            self.graph.expand(node)
