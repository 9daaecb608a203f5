"""How the cost of a weight should depend on its size, by random transformers of diffusers: needs torch and diffusers.

    python -m benchmarks.diffusion_mixes

A search for the recipe of a size (`gguftools.calibration.weight_search`) makes the sum of costs least: the squared
relative error of each weight, times its number of values to some power. Small Flux and SD3 transformers, with weights
as they are initialized and with heavy tails and unequal scales, are run with the weights that each power chooses. The
figure is the error of their outputs, relative to that of the power 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

from gguftools.calibration.knapsack import Candidate, best_within
from gguftools.calibration.weight_search import FAST
from quants import format_named

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
BITS = (3.0, 3.75, 4.25, 4.75, 5.5, 6.2)
TEXT, POOLED, INPUTS = 512, 256, 3
SHARED = {
    "attention_head_dim": 64,
    "num_attention_heads": 4,
    "joint_attention_dim": TEXT,
    "pooled_projection_dim": POOLED,
}


def transformer(name: str) -> Any:
    torch.manual_seed(0)
    if name == "flux":
        sizes = {"num_layers": 3, "num_single_layers": 6, "in_channels": 64, "axes_dims_rope": (16, 24, 24)}
        return FluxTransformer2DModel(patch_size=1, guidance_embeds=False, **sizes, **SHARED).eval()
    sizes = {"num_layers": 4, "in_channels": 16, "out_channels": 16, "caption_projection_dim": 256}
    return SD3Transformer2DModel(sample_size=32, patch_size=2, pos_embed_max_size=64, **sizes, **SHARED).eval()


def with_heavy_tails(model: Any) -> None:
    """Draw weights from Student's t, with a scale for each matrix."""
    random = np.random.default_rng(1)
    for weight in model.parameters():
        if weight.ndim == 2:
            scale = np.exp(random.normal(0, 0.3)) * 0.6 / np.sqrt(weight.shape[1])
            weight.data = torch.from_numpy((random.standard_t(5, size=weight.shape) * scale).astype(np.float32))


def inputs(name: str) -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(3)
    for _ in range(INPUTS):
        given = {
            "encoder_hidden_states": torch.randn(1, 64, TEXT, generator=random),
            "pooled_projections": torch.randn(1, POOLED, generator=random),
            "timestep": torch.rand(1, generator=random) * (1 if name == "flux" else 1000),
            "return_dict": False,
        }
        if name == "flux":
            places = torch.arange(256)
            given["hidden_states"] = torch.randn(1, 256, 64, generator=random)
            given["img_ids"] = torch.stack([places * 0, places // 16, places % 16], 1).float()
            given["txt_ids"] = torch.zeros(64, 3)
        else:
            given["hidden_states"] = torch.randn(1, 16, 32, 32, generator=random)
        yield given


class Rounded:
    """A model whose weights are replaced by rounded ones."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.inputs = model, list(inputs(name))
        named = model.named_parameters()
        self.weights = {
            key: each for key, each in named if each.ndim == 2 and "blocks" in key and each.shape[1] % 256 == 0
        }
        self.original = {key: each.data.clone() for key, each in self.weights.items()}
        self.decoded, self.errors = {}, {}
        for key, tensor in self.original.items():
            values = np.ascontiguousarray(tensor.numpy(), np.float32)
            for form in map(format_named, FAST):
                decoded = self.decoded[key, form.name] = form.decode(form.encode(values))
                self.errors[key, form.name] = float(np.square(decoded - values).sum() / np.square(values).sum())
        self.wanted = self._outputs()

    def _outputs(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return [self.model(**each)[0] for each in self.inputs]

    def chosen(self, bits: float, power: float) -> Mapping[str, str]:
        """Return the formats of a number of bits per weight."""
        tables = {
            key: [
                Candidate(
                    form.name,
                    each.shape[0] * form.row_bytes(each.shape[1]),
                    self.errors[key, form.name] * each.numel() ** power,
                )
                for form in map(format_named, FAST)
            ]
            for key, each in self.original.items()
        }
        budget = int(bits / 8 * sum(each.numel() for each in self.original.values()))
        return {key: each.format for key, each in best_within(tables, budget).items()}

    def error(self, formats: Mapping[str, str]) -> float:
        """Return the relative error of the outputs."""
        for key, form in formats.items():
            self.weights[key].data = torch.from_numpy(self.decoded[key, form])
        parts = [
            float((made - own).square().sum() / own.square().sum())
            for made, own in zip(self._outputs(), self.wanted, strict=True)
        ]
        for key, own in self.original.items():
            self.weights[key].data = own
        return float(np.sqrt(np.mean(parts)))


def main() -> None:
    rows = []
    for name in ("flux", "sd3"):
        for tails in ("as initialized", "heavy tails"):
            model = transformer(name)
            if tails == "heavy tails":
                with_heavy_tails(model)
            rounded = Rounded(model, name)
            for bits in BITS:
                rows.append([rounded.error(rounded.chosen(bits, power)) for power in POWERS])
                print(f"{name} {tails:14s} {bits:4.2f} bits  " + "  ".join(f"{each:.5f}" for each in rows[-1]))
    table = np.array(rows)
    means = np.exp(np.log(table / table[:, :1]).mean(axis=0))
    worst = (table / table.min(axis=1, keepdims=True)).max(axis=0)
    for power, mean, most in zip(POWERS, means, worst, strict=True):
        print(f"power {power:4.2f}: {mean:.3f} of the error with power 0; at worst {most:.2f} of the best power's")


if __name__ == "__main__":
    main()
