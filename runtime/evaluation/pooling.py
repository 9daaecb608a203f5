"""Embeddings: a text's final states pooled to one vector, or a score of two texts.

Source: llama.cpp b11434, `llm_graph_context::build_pooling` and `common_embd_normalize`; transformers' classifier
heads, which the first follows (`models/roberta/`, `models/modernbert/`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from archs.registry import of_file
from quants.errors import ModelError, OptionError
from quants.spelling import did_you_mean, quote

from .. import ops
from ..arrays import Doubles, Floats
from ..model import RunningModel
from ..tokenizer import Tokenizer
from .option_scores import has_option_scores, linear, option_scores

Pooling = Literal["none", "mean", "cls", "last", "rank"]
Text = str | tuple[str, str]

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)  # in the order of the file's numbers
UNSPECIFIED = -1
AS_THEY_ARE, LARGEST, EUCLIDEAN = -1, 0, 2
YES_NO = ("yes", "no")  # the labels of Qwen3's rerankers, whose scores are probabilities
INT16 = 32760.0  # the largest value after normalization by LARGEST
TOKENS_AT_ONCE = 4096  # of equally long texts that run together


@dataclass(frozen=True)
class Embeddings:
    """Vectors of texts.

    vectors: float32 (texts, width); by "none" a row for each token, text after text; by "rank" the scores, (texts,
    labels). tokens: number of each text's, as read. normalize: the norm that is 1; AS_THEY_ARE, or LARGEST for a
    largest value of INT16. truncated: numbers of the texts (from 0) that were cut. labels: of scores, if the file names
    them. warnings: a line each.
    """

    vectors: Floats
    tokens: list[int]
    pooling: Pooling
    normalize: int
    truncated: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def of(self, number: int) -> Floats:
        """Return a text's result: (width,), or by "none" (tokens, width)."""
        if self.pooling != "none":
            return np.asarray(self.vectors[number])
        start = sum(self.tokens[:number])
        return np.asarray(self.vectors[start : start + self.tokens[number]])

    def as_dict(self, vectors: bool = True) -> dict[str, Any]:
        """Return plain data; without vectors, only their description."""
        texts: list[dict[str, Any]] = [{"tokens": count} for count in self.tokens]
        for number, text in enumerate(texts if vectors else ()):
            text["embedding"] = self.of(number).tolist()
        return {
            "pooling": self.pooling,
            "normalize": self.normalize,
            "width": self.vectors.shape[1],
            "truncated": list(self.truncated),
            "labels": list(self.labels),
            "texts": texts,
        }


def embeddings(
    model: RunningModel,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    *,
    pooling: str | None = None,
    normalize: int | None = None,
    truncate: bool = False,
    progress: Callable[[int, int, Any], None] | None = None,
) -> Embeddings:
    """Return vectors of texts, with the tokens around them that the model expects; special tokens written in them
    count.

    pooling: None for the file's, or "none" if it has none. For "rank" a pair of texts is a query and a document.
    normalize: p of the norm that is made 1, EUCLIDEAN by default; AS_THEY_ARE or LARGEST; scores stay as they are, and
    a decision model's results for each token (see `runtime.evaluation.option_scores`) unless it is given. truncate: cut
    a text that is longer than the model's positions. progress(tokens done, of how many, None). Raises OptionError for
    such a text otherwise, for one without tokens, and for an unknown norm or pooling; ModelError for "rank" without a
    classifier's head, and as `RunningModel.hidden_states` does.
    """
    chosen = file_pooling(model.metadata) if pooling is None else pooling_named(pooling)
    _check(model, texts, chosen, normalize)
    limit, truncated, ids = token_limit(model), list[int](), list[list[int]]()
    for number, text in enumerate(texts):
        tokens = _ids(model.metadata, tokenizer, text, None)
        if limit is not None and len(tokens) > limit:
            if not truncate:
                problem = f"text {number + 1} has {len(tokens)} tokens; the model has positions for {limit}"
                raise OptionError(problem, hint="shorten it, or let its end be left out (`truncate`)")
            tokens = _ids(model.metadata, tokenizer, text, limit)
            truncated.append(number)
        if not tokens:
            raise OptionError(f"text {number + 1} has no tokens", "an empty text has no vector in this model")
        ids.append(tokens)
    rows, decides = dict[int, Floats](), has_option_scores(model)
    done, total = 0, sum(map(len, ids))
    if progress is not None:
        progress(done, total, None)
    together = list(batches([len(each) for each in ids]))
    model.prepare(([ids[number] for number in numbers], 0) for numbers in together)
    for numbers in together:
        states = model.hidden_states([ids[number] for number in numbers])
        if decides and chosen != "rank":
            states = option_scores(model, states)
        vectors = pooled(model, states, chosen)
        rows.update(zip(numbers, vectors if chosen == "rank" else dense_layers(model, vectors), strict=True))
        done += states.shape[0] * states.shape[1]
        if progress is not None:
            progress(done, total, None)
    scored = chosen == "rank" or (decides and normalize is None)
    norm = AS_THEY_ARE if scored else EUCLIDEAN if normalize is None else normalize
    parts = [rows[number].reshape(-1, rows[number].shape[-1]) for number in range(len(texts))]
    return Embeddings(
        normalized(np.concatenate(parts), norm),
        [len(each) for each in ids],
        chosen,
        norm,
        tuple(truncated),
        labels_of(model.metadata) if chosen == "rank" else (),
        tuple(_warnings(model, chosen, pooling, truncated)),
    )


def _check(model: RunningModel, texts: Sequence[Text], pooling: str, normalize: int | None) -> None:
    if isinstance(texts, str) or not len(texts):
        raise OptionError("there are no texts", "a list of texts is expected")
    if pooling == "rank" and not has_head(model):
        problem = "the file has no classifier's head (cls.weight, cls.output.weight): it gives no scores"
        raise ModelError(problem, "the vectors of texts come by another `pooling`")
    if normalize is not None and (isinstance(normalize, bool) or not isinstance(normalize, int) or normalize < -1):
        raise OptionError(f"normalize is {quote(normalize)}; -1, 0 or the p of a norm was expected")
    if normalize not in (None, AS_THEY_ARE) and pooling == "rank":
        raise OptionError("scores are not normalized", "leave `normalize` out")


def pooling_named(name: str) -> Pooling:
    """Return a pooling. Raises OptionError for an unknown name."""
    for known in POOLINGS:
        if known == name:
            return known
    hint = did_you_mean(str(name), POOLINGS, f"known are {', '.join(POOLINGS)}")
    raise OptionError(f"{quote(name)} is no way of pooling", hint)


def file_pooling(metadata: Mapping[str, Any]) -> Pooling:
    """Return the file's pooling, or "none". Raises ModelError for an unknown number."""
    name = metadata.get("general.architecture")
    number = int(metadata.get(f"{name}.pooling_type", UNSPECIFIED))
    if number == UNSPECIFIED:
        return "none"
    if not 0 <= number < len(POOLINGS):
        raise ModelError(f"{name}.pooling_type is {number}; known are 0 to {len(POOLINGS) - 1}")
    return POOLINGS[number]


def scores_pairs(metadata: Mapping[str, Any]) -> bool:
    """Return whether a head scores pairs of texts: not that of a decoder, unless the file has a template for them."""
    if "tokenizer.chat_template.rerank" in metadata:
        return True
    return not of_file(str(metadata.get("general.architecture")), metadata).block.causal


def token_limit(model: RunningModel) -> int | None:
    """Return a text's maximum length: learned positions, else the model's context length, if known."""
    if "position_embd.weight" in model.tensors:
        return int(model.tensors["position_embd.weight"].shape[0])
    length = model.metadata.get(f"{model.metadata['general.architecture']}.context_length")
    return int(length) if length else None


def _ids(metadata: Mapping[str, Any], tokenizer: Tokenizer, text: Text, limit: int | None) -> list[int]:
    """Return a text, or a query with its document, with the tokens that the model expects around; at most `limit`."""
    if isinstance(text, tuple) and (template := metadata.get("tokenizer.chat_template.rerank")) is not None:
        query, document = text
        text = template.replace("{query}", query).replace("{document}", document)
    first, *more = [text] if isinstance(text, str) else text
    around, read = tokenizer.around, partial(tokenizer.encode, add_special=False, parse_special=True)
    if more:
        end = list(around.after_pair)
        head, rest = [*around.before_pair, *read(first), *around.between], read(more[0])
    else:
        end = list(around.after)
        head, rest = list(around.before), read(first)
    if limit is None:
        return head + rest + end
    kept = max(limit - len(end), 0)
    return (head + rest)[:kept] + end


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of equally long texts that run together, the longest first."""
    by_length: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        by_length.setdefault(length, []).append(number)
    for length in sorted(by_length, reverse=True):
        step = max(1, TOKENS_AT_ONCE // length)
        numbers = by_length[length]
        yield from (numbers[i : i + step] for i in range(0, len(numbers), step))


def pooled(model: RunningModel, states: Floats, pooling: Pooling) -> Floats:
    """Return states (texts, n, width) → (texts, width), scores (texts, labels), or for "none" the states."""
    if pooling == "none":
        return states
    if pooling == "mean":
        means: Doubles = states.mean(axis=1, dtype=np.float64)
        return means.astype(np.float32)
    if pooling == "rank":
        return scores(model, states)
    return states[:, 0 if pooling == "cls" else -1]


def dense_layers(model: RunningModel, x: Floats) -> Floats:
    """Return states, pooled or not, times the file's matrices of sentence-transformers' Dense modules, if it has
    any.
    """
    for name in ("dense_2", "dense_3"):
        if f"{name}.weight" in model.network.global_tensors:
            x = linear(model, name, x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
    return x


def normalized(vectors: Floats, norm: int) -> Floats:
    """Return each row divided by its norm; rows of zeros stay."""
    if norm == AS_THEY_ARE:
        return vectors
    values = vectors.astype(np.float64)
    sizes = _sizes(values, norm)
    divided = np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 0)
    return divided.astype(np.float32)


def _sizes(values: Doubles, norm: int) -> Doubles:
    largest: Doubles = np.abs(values).max(axis=1, keepdims=True)
    if norm == LARGEST:
        return largest / INT16
    relative = np.divide(np.abs(values), largest, out=np.zeros_like(values), where=largest > 0)  # no power overflows
    sizes: Doubles = largest * (relative**norm).sum(axis=1, keepdims=True) ** (1 / norm)
    return sizes


def has_head(model: RunningModel) -> bool:
    return "cls.weight" in model.tensors or "cls.output.weight" in model.tensors


def scores(model: RunningModel, states: Floats) -> Floats:
    """Return states (texts, n, width) → (texts, labels): the classifier head's output for the state it reads.

    That is the first token's, for a causal model the last one's, or the mean of all.
    """
    name, how = model.architecture.name, model.network.keys.get("classifier.pooling_type")
    usual: Pooling = "last" if model.architecture.block.causal else "cls"
    of_numbers: dict[Any, Pooling] = {POOLINGS.index(each): each for each in POOLINGS if each not in ("none", "rank")}
    x = pooled(model, states, of_numbers.get(how, usual))
    tensors, numbers, threads = model.network.global_tensors, model.network.hparams, model.threads
    if "cls.weight" in tensors:
        x = linear(model, "cls", x)
        between = str(model.network.keys.get("classifier.hidden_activation"))
        x = np.tanh(x) if between == "tanh" else ops.activated(between, x, threads)
        if "cls.norm.weight" in tensors:
            x = ops.layer_norm(x, tensors.array("cls.norm.weight"), tensors.array("cls.norm.bias"), numbers.eps)
    if "cls.output.weight" in tensors:
        x = linear(model, "cls.output", x)
    return ops.softmax(x) if name in ("qwen3", "qwen3vl") and labels_of(model.metadata) == YES_NO else x


def labels_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a classifier's labels, if the file has them."""
    return tuple(map(str, metadata.get(f"{metadata['general.architecture']}.classifier.output_labels") or ()))


def _warnings(model: RunningModel, chosen: Pooling, asked: str | None, truncated: Sequence[int]) -> Iterator[str]:
    own = f"{model.metadata['general.architecture']}.pooling_type"
    if asked is None and own not in model.metadata and not has_option_scores(model):
        yield f"the file does not say how to pool ({own}): a vector for each token"
    if truncated:
        some = ", ".join(str(number + 1) for number in truncated[:8]) + (", …" if len(truncated) > 8 else "")
        one = f"the end of text {some} was left out"
        yield one if len(truncated) == 1 else f"the ends of {len(truncated)} texts were left out: {some}"
