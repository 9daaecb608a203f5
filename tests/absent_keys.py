"""Small models whose keys are left out one at a time, and what llama.cpp makes of each (tests/data/absent_keys).

A model is recorded as keys and as names, shapes and moments of tensors; weights are made from those, so that files
don't depend on what a converter writes. `tests/verify/absent_keys.py` writes the records, from llama.cpp alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from archs.hparams.deviations import deviations
from archs.metadata import Metadata, ValueType
from archs.registry import of_file
from quants.errors import GgufToolsError
from quants.tensor import Tensor, from_array
from runtime import ops
from runtime.evaluation.pooling import dense_layers, file_pooling, pooled
from runtime.model import RunningModel
from tests.archs.checkpoints import values
from tests.conftest import DATA

FOLDER = DATA / "absent_keys"
MODELS, TRUTH = FOLDER / "models.jsonl.gz", FOLDER / "truth.jsonl.gz"
COLUMNS = 24  # of a row that are recorded
TOLERANCE = 1e-3  # largest difference over the logits' std that counts as equal
TOLERANCES = {  # of models whose whole files are further apart, and why
    "gemma2-46-layers": 5e-3,
    "gemma3-62-layers": 5e-3,  # what is rounded grows from layer to layer
    "gemma3n": 0.02,  # llama.cpp takes deviations over n - 1 gates, of which there are few here
    "wavtokenizer": 5e-3,  # its gelu is not among those that are rounded here
}
# Architecture → keys that are dropped or changed in cases that differ on purpose, and why, where whole files show
# nothing of it.
EXPLAINED: dict[str, tuple[tuple[str, ...], str]] = {
    "hunyuan_vl": (("rope.scaling.alpha",), "a text's tokens have position 0 in llama.cpp's last section")
}
KEPT_APART = ("general.", "tokenizer.")  # keys that are not a network's, in most models
OF_NETWORKS = ("tokenizer.ggml.token_type_count",)

Floats = NDArray[np.float32]
Verdict = Literal[
    "equal", "on purpose", "differs", "crashed", "refused by both", "refused here", "refused by llama.cpp"
]


@dataclass(frozen=True)
class Case:
    """A model's file without some keys, and with others. outcome: "loaded", "refused" or "aborted" by llama.cpp.

    rows: what is recorded of its logits, or of an encoder's states: (rows, columns). std: that of all of them. reason:
    what llama.cpp says where it refuses.
    """

    model: str
    drop: tuple[str, ...] = ()
    changed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    rows: Floats | None = None
    std: float = 0.0

    @property
    def name(self) -> str:
        parts = [f"-{key}" for key in self.drop] + [f"+{key}={value[-1]}" for key, value in self.changed.items()]
        return " ".join(parts) or "as it is"


@dataclass(frozen=True)
class Description:
    """A recorded model: keys with their types, tensors as (name, type, shape, mean, std, least, largest)."""

    name: str
    keys: dict[str, tuple[Any, ...]]
    tensors: list[list[Any]]
    ids: list[int]
    decoder_ids: list[int]
    states: bool

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"][1])

    def network_keys(self) -> list[str]:
        return [key for key in self.keys if not key.startswith(KEPT_APART) or key in OF_NETWORKS]

    @cached_property
    def whole(self) -> dict[str, tuple[Any, ...]]:
        """All keys of the file as it is."""
        return {**self.keys, **vocabulary(self)}

    def metadata(self, case: Case) -> Metadata:
        made = Metadata()
        for key, value in {**self.whole, **case.changed}.items():
            if key not in case.drop:
                kinds = [ValueType[kind] for kind in value[:-1]]
                made.set(key, value[-1], *kinds)
        return made

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights: numbers near to normal ones between the least and the largest of the original's."""
        made: dict[str, NDArray[Any]] = {}
        for name, kind, shape, *numbers in self.tensors:
            if kind != "F32":
                made[name] = np.array(numbers[0], np.int32).reshape(shape)
                continue
            mean, std, least, largest = numbers
            drawn = values(self.name, name, shape, mean, std)
            made[name] = np.clip(drawn, least, largest).astype(np.float32)
        return made


def vocabulary(description: Description) -> dict[str, tuple[Any, ...]]:
    """Keys of a vocabulary as large as the embeddings, which llama.cpp looks for."""
    name = "decoder.token_embd.weight" if "token_embd.weight" not in _names(description) else "token_embd.weight"
    count = next((shape[0] for each, _, shape, *_ in description.tensors if each == name), 0)
    tokens = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(3, count))][:count]
    return {
        "tokenizer.ggml.model": ("STRING", "llama"),
        "tokenizer.ggml.tokens": ("ARRAY", "STRING", tokens),
        "tokenizer.ggml.scores": ("ARRAY", "FLOAT32", [0.0] * count),
        "tokenizer.ggml.token_type": ("ARRAY", "INT32", [2, 3, 3, *[1] * (count - 3)][:count]),
        "tokenizer.ggml.bos_token_id": ("UINT32", 1),
        "tokenizer.ggml.eos_token_id": ("UINT32", 2),
    }


def _names(description: Description) -> set[str]:
    return {row[0] for row in description.tensors}


@cache
def descriptions() -> dict[str, Description]:
    with gzip.open(MODELS, "rt", encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    return {each["name"]: Description(**each) for each in read}


@cache
def cases() -> dict[str, list[Case]]:
    """Model → its cases, the first of which is the file as it is."""
    by_model: dict[str, list[Case]] = {}
    with gzip.open(TRUTH, "rt", encoding="utf-8") as lines:
        rows: list[Floats] = []
        for line in lines:
            read = json.loads(line)
            if "values" in read:
                rows.append(np.array(read["values"], np.float32))
                continue
            number = read.pop("rows", None)
            read["drop"] = tuple(read.get("drop", ()))
            by_model.setdefault(read["model"], []).append(Case(**read, rows=None if number is None else rows[number]))
    return by_model


def shown(rows: Floats, name: str) -> Floats:
    """What is recorded of all rows: the last one, one in the middle, and some columns of them."""
    chosen = [len(rows) - 1] if len(rows) == 1 else [len(rows) // 2, len(rows) - 1]
    random = np.random.default_rng(list(name.encode()))
    columns = rows.shape[1]
    some = np.sort(random.choice(columns, min(COLUMNS, columns), replace=False))
    return np.ascontiguousarray(rows[np.ix_(chosen, some)])


def tensors(description: Description) -> dict[str, Tensor]:
    return {name: from_array(name, array) for name, array in description.arrays().items()}


def computed(description: Description, case: Case, weights: Mapping[str, Tensor]) -> Floats:
    """Rows as `shown` gives them of the runtime's logits or states. Raises GgufToolsError."""
    metadata = description.metadata(case)
    model = RunningModel(metadata, weights, threads=1)
    if not description.states:
        return shown(model.logits(description.ids, description.decoder_ids), description.name)
    states = model.hidden_states([description.ids])
    found = dense_layers(model, pooled(model, states, file_pooling(metadata)))
    return shown(found.reshape(-1, found.shape[-1]), description.name)


@dataclass(frozen=True)
class Compared:
    """A case beside ours. difference: the largest, over the std; problem: why one side refuses, or why it differs."""

    case: Case
    verdict: Verdict
    difference: float = 0.0
    problem: str = ""


@contextmanager
def rounded_gelu() -> Iterator[None]:
    """Let the runtime compute gelu as llama.cpp does: by tanh, of halves, as halves (a table has all of them)."""
    exact = ops.KERNELS["gelu_tanh"]

    def rounded(x: Floats) -> None:
        inner = x.astype(np.float16).astype(np.float32)
        exact(inner)
        x[...] = np.where(x <= -10, 0, np.where(x >= 10, x, inner.astype(np.float16).astype(np.float32)))

    with mock.patch.dict(ops.KERNELS, {"gelu_tanh": rounded, "gelu": rounded}):
        yield


def compare(description: Description, of_model: list[Case]) -> Iterator[Compared]:
    """Each case of a model beside what the runtime computes."""
    weights, whole = tensors(description), of_model[0]
    as_it_is = _compared(description, whole, weights)
    usual = _reasons(description, whole) if as_it_is.verdict == "equal" else set()
    for case in of_model:
        found = as_it_is if case is whole else _compared(description, case, weights)
        if found.verdict == "differs" and (reasons := _reasons(description, case) - usual):
            found = replace(found, verdict="on purpose", problem="; ".join(sorted(reasons)))
        yield found


def _compared(description: Description, case: Case, weights: Mapping[str, Tensor]) -> Compared:
    try:
        with rounded_gelu():
            ours = computed(description, case, weights)
    except GgufToolsError as error:
        return Compared(case, "refused by both" if case.rows is None else "refused here", problem=str(error))
    except Exception as error:  # a bug of ours, which the other cases should not hide
        return Compared(case, "crashed", problem=repr(error))
    if case.rows is None:
        return Compared(case, "refused by llama.cpp", problem=case.reason)
    if case.rows.shape != ours.shape:
        return Compared(case, "differs", np.inf, f"{ours.shape} for {case.rows.shape}")
    difference = float(np.abs(ours - case.rows).max() / case.std)
    tolerance = TOLERANCES.get(description.name, TOLERANCE)
    return Compared(case, "equal" if difference <= tolerance else "differs", difference)


def _reasons(description: Description, case: Case) -> set[str]:
    """Why a file of that case means something else here, by the runtime's own table."""
    metadata = description.metadata(case)
    try:
        found = deviations(of_file(description.architecture, metadata), metadata)
    except GgufToolsError:
        return set()
    keys, why = EXPLAINED.get(description.architecture, ((), ""))
    touched = {key.removeprefix(f"{description.architecture}.") for key in (*case.drop, *case.changed)}
    return {f"{each.key}: {each.reason}" for each in found} | ({why} if touched & {*keys} else set())
