"""Results as `divergence --json` prints them, made of random numbers that look like real ones."""

from __future__ import annotations

import math
import random
from typing import Any

TYPES = {
    "Q8_0": (8.5, 0.0004),
    "Q6_K": (6.6, 0.0021),
    "Q5_K_M": (5.7, 0.0062),
    "Q5_0": (5.6, 0.0094),
    "Q4_K_M": (4.9, 0.021),
    "IQ4_XS": (4.3, 0.03),
    "Q4_0": (4.6, 0.055),
    "Q3_K_M": (3.9, 0.085),
    "IQ3_XXS": (3.1, 0.21),
    "Q2_K": (2.8, 0.33),
    "IQ2_XXS": (2.1, 0.9),
    "IQ1_S": (1.6, 2.2),
}
TEXTS = {"novel": 0.8, "code": 0.5, "news": 1.0, "dialogue": 1.2, "mathematics": 0.9, "chinese": 1.9}
PASSAGE = (
    "It",
    " was",
    " the",
    " custom",
    " of",
    " Captain",
    " W",
    "ent",
    "worth",
    " to",
    " walk",
    " before",
    " breakfast",
    ",",
    " and",
    "\n",
    "\t",
    " Anne",
    ",",
    " who",
    " knew",
    " it",
    ",",
    " took",
    " the",
    " other",
    " road",
    " <b>",
    "&",
    " “",
    "مرحبا",
    " 中文",
    "\u202e",
    "\x1b",
    ".",
    "\n",
    "\n",
    " She",
    " said",
    " nothing",
)


def percentiles(mean: float) -> dict[str, float]:
    scale = {
        "max": 60,
        "p99_9": 18,
        "p99": 7,
        "p95": 3.4,
        "p90": 2.2,
        "median": 0.45,
        "p10": 0.02,
        "p5": 0.006,
        "p1": 0.0007,
        "p0_1": 0.00005,
        "min": -1e-6,
    }
    return {"mean": mean, "standard_error": mean / 40, **{key: mean * factor for key, factor in scale.items()}}


def changes(kl: float) -> dict[str, float]:
    width = math.sqrt(kl) / 4
    places = {
        "max": 6,
        "p99_9": 4,
        "p99": 2.2,
        "p95": 1.0,
        "p90": 0.6,
        "p75": 0.15,
        "median": -0.01,
        "p25": -0.25,
        "p10": -0.8,
        "p5": -1.3,
        "p1": -2.8,
        "p0_1": -5,
        "min": -7,
    }
    values = {key: max(-1.0, min(1.0, width * factor)) for key, factor in places.items()}
    return {"mean": -width / 20, "standard_error": width / 90, "rms": width, "rms_standard_error": width / 50, **values}


def results(count: int = 6, seed: int = 1, passages: int = 20) -> dict[str, Any]:
    """Results of the first so many of twelve files."""
    rng = random.Random(seed)
    return {
        "base": "/models/smollm2-135m-f16.gguf",
        "n_ctx": 512,
        "precision": "float32",
        "products": "int16",
        "texts": [{"name": name, "file": f"{name}.txt", "windows": 4, "scored": 1020} for name in TEXTS],
        "base_perplexity": 16.4213,
        "base_perplexity_standard_error": 0.3112,
        "base_entropy": 2.71,
        "files": [file(name, rng, passages) for name in list(TYPES)[:count]],
    }


def file(name: str, rng: random.Random, passages: int) -> dict[str, Any]:
    bits, kl = TYPES[name]
    edges = [-9 + 0.25 * n for n in range(49)]
    middle = math.log10(kl * 0.5)
    widths = [1.0 if edge < middle else 0.55 for edge in edges[:-1]]
    counts = [round(900 * math.exp(-(((x - middle) / width) ** 2))) for x, width in zip(edges, widths, strict=False)]
    running = kl * 1.5
    chunks = [running := running + (kl - running) * rng.uniform(0, 0.4) + kl * rng.gauss(0, 0.02) for _ in range(24)]
    ratio = math.exp(0.6 * kl)
    return {
        "file": f"/models/smollm2-135m-{name}.gguf",
        "size_bytes": int(134.5e6 * bits / 8),
        "bits_per_weight": bits,
        "type": name,
        "perplexity": 16.4213 * ratio,
        "perplexity_standard_error": 0.32,
        "perplexity_ratio": ratio,
        "perplexity_ratio_standard_error": kl / 50,
        "perplexity_difference": 16.4213 * (ratio - 1),
        "perplexity_difference_standard_error": kl / 3,
        "log_ratio": 0.6 * kl,
        "log_ratio_standard_error": kl / 50,
        "correlation": 0.992,
        "same_top": 1 - math.sqrt(kl) / 4,
        "same_top_standard_error": 0.004,
        "flips": math.sqrt(kl) / 7,
        "kl_divergence": percentiles(kl),
        "kl_reverse": {"mean": kl * 1.1, "standard_error": kl / 35},
        "total_variation": {"mean": math.sqrt(kl) / 4, "standard_error": 0.001},
        "acceptance": {"mean": 1 - math.sqrt(kl) / 4, "standard_error": 0.001},
        "entropy_change": {"mean": 0.3 * kl, "standard_error": kl / 60},
        "p_change": changes(kl),
        "lower_bound": False,
        "texts": {
            text: {"perplexity": 16.0, "kl_divergence": percentiles(kl * factor * rng.uniform(0.9, 1.1))}
            for text, factor in TEXTS.items()
        },
        "positions": {
            "edges": [256 + 16 * n for n in range(17)],
            "kl_mean": [kl * (1 + 0.015 * n) * rng.uniform(0.9, 1.1) for n in range(16)],
        },
        "histogram": {"edges": edges, "counts": counts},
        "chunks": chunks,
        "worst": [worst(kl * 60 / (n + 1), rng) for n in range(passages)],
    }


def worst(kl: float, rng: random.Random) -> dict[str, Any]:
    place = rng.randrange(8, 36)
    passage = [[token, abs(rng.gauss(0, 0.3)) ** 3 * kl] for token in PASSAGE]
    passage[place][1] = kl
    return {
        "text": "novel",
        "window": rng.randrange(24),
        "position": rng.randrange(256, 511),
        "kl": kl,
        "before": "".join(PASSAGE[max(0, place - 12) : place]),
        "token": PASSAGE[place],
        "p_base": 0.71,
        "p": 0.0213,
        "base_top": PASSAGE[place],
        "top": " the",
        "passage": passage,
    }


def tensors(relative: float, layers: int = 30, seed: int = 2) -> dict[str, dict[str, float]]:
    """Errors of weights as `diff --errors` has them."""
    rng = random.Random(seed)
    kinds = {"attn_q": 1.0, "attn_k": 0.9, "attn_v": 0.6, "attn_output": 1.1, "ffn_up": 1.2, "ffn_down": 0.7}
    found = {"token_embd.weight": relative * 0.4}
    for layer in range(layers):
        for kind, factor in kinds.items():
            found[f"blk.{layer}.{kind}.weight"] = relative * factor * rng.uniform(0.8, 1.3) * (1 + 0.4 * (layer < 2))
    return {
        name: {"rmse": error / 20, "relative": error, "sqnr": -20 * math.log10(error)} for name, error in found.items()
    }
