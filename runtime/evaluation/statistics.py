"""Statistics of many predictions, by llama-perplexity's definitions: means with errors, percentiles, ratios."""

import math
from collections.abc import Mapping

import numpy as np

from ..arrays import Doubles, Ids
from .divergence import ENTROPY, KL, KL_REVERSE, LOG_P, TOP, VARIATION
from .perplexity import perplexity_of

HIGH = {"p99_9": 0.999, "p99": 0.99, "p95": 0.95, "p90": 0.9}
LOW = {"p10": 0.1, "p5": 0.05, "p1": 0.01, "p0_1": 0.001}
BUCKETS = 16
LOG_EDGES = np.arange(-9.0, 2.01, 0.25)  # of log10 KL


def mean_and_error(values: Doubles) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 for ten values or fewer."""
    mean = float(values.mean())
    spread = float(((values - mean) ** 2).mean())
    return mean, math.sqrt(spread / (values.size - 1)) if values.size > 10 else 0.0


def with_error(values: Doubles) -> dict[str, float]:
    mean, error = mean_and_error(values)
    return {"mean": mean, "standard_error": error}


def percentiles(values: Doubles, fractions: Mapping[str, float]) -> dict[str, float]:
    """Return percentiles of values, sorted, as float32, interpolated between neighbours in float32."""
    rows = np.sort(values.astype(np.float32))
    return {name: _percentile(rows, fraction) for name, fraction in fractions.items()}


def _percentile(rows: "np.ndarray[tuple[int], np.dtype[np.float32]]", fraction: float) -> float:
    place = np.float32(fraction) * np.float32(len(rows) - 1)
    below = int(place)
    part = np.float32(place - np.float32(below))
    return float((np.float32(1) - part) * rows[below] + part * rows[min(below + 1, len(rows) - 1)])


def median(values: Doubles) -> float:
    """Return the median as float32."""
    rows = np.sort(values.astype(np.float32))
    half = len(rows) // 2
    return float(rows[half]) if len(rows) % 2 else float(np.float32(0.5) * (rows[half] + rows[half - 1]))


def distribution(values: Doubles, quartiles: bool = False) -> dict[str, float]:
    """Return the percentiles that are printed, from max to min. quartiles: p75 and p25, too."""
    return {
        "max": float(values.max()),
        **percentiles(values, HIGH | ({"p75": 0.75} if quartiles else {})),
        "median": median(values),
        **percentiles(values, ({"p25": 0.25} if quartiles else {}) | LOW),
        "min": float(values.min()),
    }


def perplexity_figures(base: Doubles, other: Doubles) -> dict[str, float]:
    """Return perplexities from log-probabilities of the right tokens, their ratio and difference, each with its
    error.
    """
    loss, error = mean_and_error(-other)
    base_loss, base_error = mean_and_error(-base)
    covariance = _covariance(other, base)
    value, base_value, ratio = perplexity_of(loss), perplexity_of(base_loss), perplexity_of(loss - base_loss)
    gap = loss - base_loss
    gap_error = _root(error**2 + base_error**2 - 2 * covariance)
    difference_standard_error = _root(
        (value * error) ** 2 + (base_value * base_error) ** 2 - 2 * value * base_value * covariance
    )
    both = error * base_error
    return {
        "perplexity": value,
        "perplexity_standard_error": value * error,
        "perplexity_ratio": ratio,
        "perplexity_ratio_standard_error": ratio * gap_error,
        "perplexity_difference": value - base_value,
        "perplexity_difference_standard_error": difference_standard_error,
        "log_ratio": gap,
        "log_ratio_standard_error": gap_error,
        "correlation": covariance / both if both else 1.0,
    }


def _covariance(a: Doubles, b: Doubles) -> float:
    """Return the covariance of two means; 0 for fewer than ten values."""
    if a.size < 10:
        return 0.0
    return float(((a - a.mean()) * (b - b.mean())).mean()) / (a.size - 1)


def _root(value: float) -> float:
    return math.sqrt(max(0.0, value))


def p_change_figures(base: Doubles, other: Doubles) -> dict[str, float]:
    """Return the change of the right token's probability, from log-probabilities: other's less base's, as fractions."""
    change = np.exp(other) - np.exp(base)
    square, square_error = mean_and_error(change**2)
    rms = math.sqrt(square)
    rms_error = 0.5 / rms * square_error if rms else 0.0
    return {**with_error(change), "rms": rms, "rms_standard_error": rms_error, **distribution(change, quartiles=True)}


def share_with_error(hits: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> tuple[float, float]:
    """Return the share of true values, as a fraction, and its standard error."""
    share = float(hits.mean())
    return share, math.sqrt(share * (1 - share) / max(1, hits.size - 1))


def flips(base: Doubles, other: Doubles, targets: Ids) -> float:
    """Return the share of predictions whose right token is the first choice of only one model. base, other: (n, 5)."""
    return float(((base[:, TOP] == targets) != (other[:, TOP] == targets)).mean())


def figures(base: Doubles, other: Doubles, apart: Doubles, targets: Ids) -> dict[str, object]:
    """Return all figures of one model compared with its base.

    base, other: columns Z … LOG_P; apart: KL … VARIATION; targets: the right tokens.
    """
    same, same_error = share_with_error(base[:, TOP] == other[:, TOP])
    return {
        **perplexity_figures(base[:, LOG_P], other[:, LOG_P]),
        "same_top": same,
        "same_top_standard_error": same_error,
        "flips": flips(base, other, targets),
        "kl_divergence": {**with_error(apart[:, KL]), **distribution(apart[:, KL])},
        "kl_reverse": with_error(apart[:, KL_REVERSE]),
        "total_variation": with_error(apart[:, VARIATION]),
        "acceptance": with_error(1 - apart[:, VARIATION]),
        "entropy_change": with_error(other[:, ENTROPY] - base[:, ENTROPY]),
        "p_change": p_change_figures(base[:, LOG_P], other[:, LOG_P]),
    }


def by_position(kl: Doubles, positions: Ids) -> dict[str, list[float]]:
    """Return mean KL of predictions by position in their window: edges (k + 1) and kl_mean (k), k at most 16."""
    edges = np.unique(np.linspace(positions.min(), positions.max() + 1, BUCKETS + 1).round().astype(np.int64))
    where = np.searchsorted(edges, positions, "right") - 1
    counts = np.bincount(where, minlength=len(edges) - 1)
    sums = np.bincount(where, kl, len(edges) - 1)
    kept = counts > 0
    return {
        "edges": [*(int(edge) for edge in edges[:-1][kept]), int(edges[-1])],
        "kl_mean": [float(value) for value in sums[kept] / counts[kept]],
    }


def histogram(kl: Doubles) -> dict[str, list[float]]:
    """Return a histogram of divergences: edges of log10 KL, counts. Outliers are in the first or the last bin."""
    logs = np.log10(np.maximum(kl, 1e-300)).clip(LOG_EDGES[0], LOG_EDGES[-1])
    counts, _ = np.histogram(logs, LOG_EDGES)
    return {"edges": [float(edge) for edge in LOG_EDGES], "counts": [int(count) for count in counts]}
