"""A pass on a device: weights, angles, and the hidden state that operations hand on besides their values."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from archs.hparams.model_hparams import LayerHParams
from quants import Tensor

from ..layer import IMAGE_WEIGHTS, ForwardContext, Layer
from .cache import DeviceCache
from .precision import tf32_products
from .weights import Weights, product


class DeviceContext:
    """A pass through a model on a device.

    forward: the pass; what later operations reuse is kept in it, as tensors of the device (`shared_keys`,
    `hidden_keys`, `first_values`).
    """

    def __init__(self, forward: ForwardContext, weights: Weights) -> None:
        self.forward, self.weights, self.device = forward, weights, weights.device
        self.texts, self.length = forward.texts, forward.length
        self.block, self.keys, self.hparams = forward.block, forward.keys, forward.hparams
        self._once: dict[Any, Any] = {}

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, made once for all layers: each copy to a device waits for it."""
        if name not in self._once:
            self._once[name] = make()
        return self._once[name]

    def share(self, other: "DeviceContext") -> None:
        """Use what is made once for another pass, over as many texts of the same length, none of which has images."""
        self._once = other._once

    def tensor(self, values: Any) -> torch.Tensor:
        """Return an array of the host on the device: float32, or int64 as it is. Not all devices have float64."""
        array = np.ascontiguousarray(values)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

    def host(self, x: torch.Tensor) -> Any:
        """Return an array of the device's on the host."""
        return x.detach().cpu().numpy()

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return x (n, width) @ weight (rows, width).T: (n, rows). TF32 where the device and the pass allow it."""
        with tf32_products() if self._may_round else nullcontext():
            return product(x, weight)

    @property
    def _may_round(self) -> bool:
        return self.weights.uses_tf32 and self.forward.precision != "exact"

    def project(self, layer: Layer, role: str, x: torch.Tensor, rows: slice | None = None) -> torch.Tensor:
        """Return x (n, width) @ W.T (* scale + bias), with the weights of image tokens and active adapters."""
        tensor, bias = layer.need(f"{role}.weight"), self.weights.array(layer, f"{role}.bias")
        self.observe(tensor, x, 0, 1)
        weight = self.weights.matrix(tensor)
        weight = weight.reshape(-1, weight.shape[-1])
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        y = self.product(x, weight)
        if f"{role}.scale" in layer:
            y = y * self.weights.need_array(layer, f"{role}.scale")
        if bias is not None:
            y = y + bias.reshape(-1)
        if self.forward.images and f"{IMAGE_WEIGHTS.get(role)}.weight" in layer:
            self._put_images(layer.need(f"{IMAGE_WEIGHTS[role]}.weight"), x, y)
        return self.adapted(layer, role, x, y)

    def _put_images(self, tensor: Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
        """Replace in y, of the last rows, the product for image tokens, except the last one of each image."""
        before = self.length - len(y)
        for image in self.forward.images:
            rows = slice(max(0, image.start - before), max(0, image.stop - 1 - before))
            if rows.start < rows.stop:
                y[rows] = self.product(x[rows], self.weights.matrix(tensor))

    def adapted(self, layer: Layer, role: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return y (n, rows) = x (n, width) @ W.T, plus the active adapters of W; of texts the last n."""
        adapters = self.forward.adapters
        if f"{role}.lora_a" not in layer or adapters is None:
            return y
        a, b = (self.weights.matrix(layer.need(f"{role}.lora_{each}")) for each in "ab")
        on = adapters.reshape(self.texts, self.length)[:, self.length - len(y) // self.texts :].reshape(-1)
        for number in np.unique(on[on > 0]).tolist():
            rows = self.tensor(np.flatnonzero(on == number))
            y[rows] += self.product(self.product(x[rows], a[number]), b[number])
        return y

    def project_expert(self, layer: Layer, role: str, x: torch.Tensor, expert: int) -> torch.Tensor:
        """Return `project` for one expert (head, copy) of a stacked weight (experts, rows, width)."""
        tensor, bias = layer.need(f"{role}.weight"), self.weights.array(layer, f"{role}.bias")
        self.observe(tensor, x, expert, tensor.shape[0])
        y = self.product(x, self.expert(tensor, expert))
        return y if bias is None else y + bias[expert]

    def project_heads(self, layer: Layer, role: str, x: torch.Tensor) -> torch.Tensor:
        """Return each head of x (n, heads, width) times its own matrix of a weight (heads, rows, width)."""
        tensor, bias = layer.need(f"{role}.weight"), self.weights.array(layer, f"{role}.bias")
        for head in range(x.shape[1]) if self.forward.observe is not None else ():
            self.observe(tensor, x[:, head], head, x.shape[1])
        with tf32_products() if self._may_round else nullcontext():
            y = (x.transpose(0, 1) @ self.weights.matrix(tensor).to(x.dtype).transpose(1, 2)).transpose(0, 1)
        return y if bias is None else y + bias

    def expert(self, tensor: Tensor, number: int) -> torch.Tensor:
        """Return one matrix of a stacked weight."""
        return self.weights.expert(tensor, number)

    def observe(self, tensor: Tensor, x: torch.Tensor, expert: int, experts: int) -> None:
        """Call the observer of products with their inputs: on the device if it can sum them there."""
        observe = self.forward.observe
        if observe is None:
            return
        owner: Any = getattr(observe, "__self__", None)
        if hasattr(owner, "observe_tensor"):
            owner.observe_tensor(tensor.name, x, expert, experts)
        else:
            observe(tensor.name, self.host(x), expert, experts)

    def observe_values(self, name: str, first_row: int, mixed: torch.Tensor) -> None:
        """Call the observer of values with their inputs as attention mixes them."""
        observe = self.forward.observe_values
        if observe is None:
            return
        takes_tensors = hasattr(getattr(observe, "__self__", None), "observe_tensor")
        observe(name, first_row, mixed if takes_tensors else self.host(mixed))

    def norm(self, layer: Layer, role: str, x: torch.Tensor, eps: float = 0.0) -> torch.Tensor:
        """Return the norm `role` over the last axis; x itself if the layer has no such norm. eps: 0 for the model's."""
        weight = self.weights.array(layer, f"{role}.weight")
        if weight is None:
            weight = self.weights.array(layer, role)
        if weight is None and not self.block.norm.endswith("_without_weights"):
            return x
        eps = eps or self.hparams.eps
        if self.block.norm.startswith("rms"):
            return rms_norm(x, weight, eps)
        return layer_norm(x, weight, self.weights.array(layer, f"{role}.bias"), eps)

    def rope(self, own: LayerHParams) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of each token's position, (tokens, rope_width / 2)."""

        def made() -> tuple[torch.Tensor, torch.Tensor]:
            cos, sin = self.forward.rope(own)
            return self.tensor(cos), self.tensor(sin)

        angles: tuple[torch.Tensor, torch.Tensor] = self.once(
            ("rope", own.rope_base, own.rope_scaled, own.rope_width), made
        )
        return angles

    @property
    def cache(self) -> DeviceCache | None:
        """Return the pass's cache, which `RunningModel.new_cache` made on the device."""
        cache = self.forward.cache
        assert cache is None or isinstance(cache, DeviceCache)
        return cache

    def cached(self, place: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and values so far of a layer's number: these appended to the cache, if there is one."""
        return (k, v) if self.cache is None else self.cache.append(place, k, v)

    def states(self, layer: Layer) -> tuple[torch.Tensor, ...]:
        """Return a recurrent layer's states in the cache; none at the beginning."""
        return () if self.cache is None else self.cache.states(layer.index)

    def keep(self, layer: Layer, tokens: int, *states: torch.Tensor) -> None:
        """Store a recurrent layer's states after `tokens` more tokens, if there is a cache."""
        if self.cache is not None:
            self.cache.keep(layer.index, tokens, *states)

    def remember(self, layer: Layer, number: int, after: Callable[[int], torch.Tensor]) -> None:
        """Record a recurrent layer's state `number` after the latest tokens, as far as the cache may be rolled back.

        after: called with the number of a token in this pass.
        """
        if self.cache is not None and self.cache.memory:
            latest = range(max(0, self.length - self.cache.memory - 1), self.length)
            self.cache.remember(layer.index, number, [after(token) for token in latest])


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight over the last axis."""
    normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
