"""Compute a file's figures from all its predictions and the base's."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.errors import VocabularyError

from ..models.model import Model
from .corpus import Corpus
from .divergence_report import FileDivergence
from .sizes import bits_per_weight, size_bytes

if TYPE_CHECKING:
    from runtime.evaluation.divergence import Predictions
    from runtime.tokenizer import Tokenizer

WORST = 20
BEFORE, AROUND = 60, 20  # characters in front of a token, tokens on either side of it


def file_divergence(
    name: str,
    file: Model,
    corpus: Corpus,
    predictions: "Predictions",
    targets: Any,
    tokenizer: "Tokenizer",
    lower_bound: bool,
) -> FileDivergence:
    """Return a file's figures, over all texts and for each text."""
    from runtime.evaluation import statistics
    from runtime.evaluation.divergence import KL

    other, apart = predictions.others[name], predictions.apart[name]
    kl = apart[:, KL]

    def figures(part: slice) -> dict[str, Any]:
        return _known(statistics.figures(predictions.base[part], other[part], apart[part], targets[part]))

    ends = np.cumsum([len(window.scored) for window in corpus.windows])
    return FileDivergence(
        str(file.path),
        size_bytes(file),
        bits_per_weight(file),
        _type(file),
        figures(slice(None)),
        lower_bound,
        {text: figures(part) for text, part in corpus.spans()},
        statistics.by_position(kl, predictions.position),
        statistics.histogram(kl),
        [float(value) for value in np.cumsum(kl)[ends - 1] / ends],
        _worst(corpus, predictions, name, kl, targets, tokenizer),
    )


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures with None instead of NaN, for those that a top-k base does not have."""
    return {
        name: _known(value) if isinstance(value, Mapping) else None if value != value else value
        for name, value in figures.items()
    }


def _type(file: Model) -> str:
    """Return the recipe in `general.file_type`; empty if there is none."""
    from ..quantization.recipes import RECIPES

    number = file.metadata.get("general.file_type")
    return next((each.name for each in RECIPES.values() if each.file_type == number and number is not None), "")


def _worst(
    corpus: Corpus, predictions: "Predictions", name: str, kl: Any, targets: Any, tokenizer: "Tokenizer"
) -> list[dict[str, Any]]:
    """Return the predictions with the largest divergence, their context and top tokens. position: of the right
    token.
    """
    from runtime.evaluation.divergence import LOG_P, TOP

    names = [text.name for text in corpus.texts for _ in range(text.windows)]
    begins = np.cumsum([0, *(len(window.scored) for window in corpus.windows)])
    first = np.cumsum([0, *(text.windows for text in corpus.texts)])
    of_window = [i - first[np.searchsorted(first, i, "right") - 1] for i in range(len(corpus.windows))]
    other, result = predictions.others[name], []

    def text(number: float) -> str:
        try:
            return tokenizer.decode([int(number)])
        except VocabularyError:  # the matrix has more rows than the vocabulary
            return f"<{int(number)}>"

    for row in np.argsort(-kl, kind="stable")[:WORST]:
        number = int(predictions.window[row])
        window, place = corpus.windows[number], int(predictions.position[row]) + 1
        diverged = dict(zip((window.scored + 1).tolist(), kl[begins[number] :].tolist(), strict=False))
        around = range(max(0, place - AROUND), min(len(window.inputs), place + AROUND))
        result.append(
            {
                "text": names[number],
                "window": int(of_window[number]),
                "position": place,
                "kl": float(kl[row]),
                "before": tokenizer.decode(window.inputs[max(0, place - BEFORE) : place].tolist())[-BEFORE:],
                "token": text(targets[row]),
                "p_base": math.exp(predictions.base[row, LOG_P]),
                "p": math.exp(other[row, LOG_P]),
                "base_top": text(predictions.base[row, TOP]),
                "top": text(other[row, TOP]),
                "passage": [[text(window.inputs[i]), diverged.get(i, 0.0)] for i in around],
            }
        )
    return result
