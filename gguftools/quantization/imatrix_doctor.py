"""Check an importance matrix against a model, and fill entries that saw no or few inputs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quants import Tensor
from quants.arguments import as_count

from .imatrix import ImportanceMatrix, problems
from .imatrix_entry import Entry, Floats
from .recipes import is_quantizable, layer_of

FEW_ROWS = 32  # of an expert: the error of a column's mean square is then √(2 / 32) = 25 % for normal inputs
MISSING_SHOWN = 8
# Weights of a layer that are multiplied with the same inputs, in the order in which they are asked.
ALIKE = (
    ("ffn_up", "ffn_gate", "ffn_gate_up"),
    ("ffn_up_exps", "ffn_gate_exps", "ffn_gate_up_exps"),
    ("ffn_up_shexp", "ffn_gate_shexp"),
    ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    ("attn_q_a", "attn_kv_a_mqa"),
)


@dataclass(frozen=True)
class Finding:
    """Describe a fault. severity: "error" or "warning". name: the weight, "" for the matrix as a whole."""

    severity: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}: {self.text}" if self.name else f"{self.severity}: {self.text}"


def examine(matrix: ImportanceMatrix, tensors: Mapping[str, Tensor] | None = None) -> list[Finding]:
    """Return the faults of a matrix, errors first. tensors: of the model that it is for."""
    findings = [*_values(matrix), *_rows(matrix)]
    if tensors is not None:
        findings += _of_model(matrix, tensors)
    return sorted(findings, key=lambda finding: finding.severity)


def _values(matrix: ImportanceMatrix) -> Iterator[Finding]:
    unseen: dict[str, list[int]] = {}
    for problem in problems(matrix):
        if problem.kind == "unseen":
            unseen.setdefault(problem.name, []).append(problem.expert)
            continue
        shown = str(problem).removeprefix(f"{problem.name}: ")
        if problem.kind == "zero":
            yield Finding("warning", problem.name, f"no input in {shown}".replace(" zero columns", " columns"))
        else:
            yield Finding("error", problem.name, shown)
    for name, experts in unseen.items():
        count = len(matrix.entries[name].counts)
        what = f"{len(experts)} of {count} experts saw no input: {_some(experts)}" if count > 1 else "saw no input"
        yield Finding("warning", name, what)
    for name, entry in matrix.entries.items():
        if entry.inputs is None:
            continue
        if not np.isfinite(entry.inputs).all():
            yield Finding("error", name, "sums of inputs are not finite")
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # (sum x)² <= n · sum x²
            limit = entry.counts[:, None].astype(np.float64) * entry.sums
            beyond = entry.inputs.astype(np.float64) ** 2 > 1.001 * limit
        if beyond.any():
            yield Finding("error", name, f"{beyond.sum()} sums of inputs are larger than their squares' allow")


def _rows(matrix: ImportanceMatrix) -> Iterator[Finding]:
    short: list[tuple[float, int]] = []
    for name, entry in matrix.entries.items():
        width = entry.sums.shape[1]
        if len(entry.counts) == 1:
            if 0 < entry.counts[0] < width:
                short.append((float(entry.counts[0]), width))
            continue
        few = np.flatnonzero((entry.counts > 0) & (entry.counts < FEW_ROWS))
        if len(few):
            what = f"{len(few)} of {len(entry.counts)} experts saw fewer than {FEW_ROWS} inputs: {_some(few.tolist())}"
            yield Finding("warning", name, what)
    if short:
        rows, width = min(short, key=lambda each: each[0] / each[1])
        what = f"{len(short)} weights saw fewer inputs than they have columns ({rows:.0f} for {width})"
        yield Finding("warning", "", f"the text is too short: {what}")


def _of_model(matrix: ImportanceMatrix, tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    missing = [name for name in _wanted(tensors) if name not in matrix.entries]
    for name, entry in matrix.entries.items():
        tensor = tensors.get(name)
        if tensor is None:
            yield Finding("error", name, "the model has no such weight: the matrix is of another model")
            continue
        experts = math.prod(tensor.shape[:-2])
        if entry.sums.size != experts * tensor.width or len(entry.counts) not in (1, experts):
            by = f"{experts} × {tensor.width}" if experts > 1 else f"{tensor.width}"
            what = f"{entry.sums.size} values where the model has {by} columns: the matrix is of another model"
            yield Finding("error", name, what)
    if missing:
        yield Finding("warning", "", f"nothing on {len(missing)} weights of the model: {_some(missing)}")


def _wanted(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of weights in layers that recipes quantize by importance."""
    names = []
    for name, tensor in tensors.items():
        in_layer = layer_of(name) >= 0 or ".blk." in name
        if in_layer and is_quantizable(name, tensor.shape, tensor.format) and not name.endswith("_norm.weight"):
            names.append(name)
    return names


def _some(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:MISSING_SHOWN])) + (", …" if len(items) > MISSING_SHOWN else "")


def filled(
    matrix: ImportanceMatrix, tensors: Mapping[str, Tensor] | None = None, min_rows: int = 0
) -> tuple[ImportanceMatrix, list[str]]:
    """Fill a matrix; return it and what was done, one line each.

    tensors: of the model; its weights without an entry take that of a weight with the same inputs, such as a gate that
    of its up projection. min_rows: experts that saw fewer inputs are filled up with the mean of all experts of their
    weight; those that saw none become that mean. Raises OptionError for an invalid number.
    """
    as_count(min_rows, "min_rows", 0)
    entries, notes = dict(matrix.entries), []
    if tensors is not None:
        for name in _wanted(tensors):
            donor = None if name in entries else _donor(name, tensors[name], matrix)
            if donor is not None:
                entries[name] = matrix.entries[donor]
                notes.append(f"{name} takes what {donor} saw: the inputs are the same")
    for name, entry in entries.items():
        short = entry.counts < min_rows
        if len(entry.counts) == 1 or not short.any() or not (entry.counts > 0).any():
            continue
        entries[name] = _shrunk(entry, min_rows)
        unseen = len(entry.unseen)
        notes.append(
            f"{name}: {short.sum()} of {len(entry.counts)} experts saw fewer than {min_rows} inputs ({unseen} none);"
            f" the mean of all experts stands for the others"
        )
    return replace(matrix, entries=entries), notes


def _donor(name: str, tensor: Tensor, matrix: ImportanceMatrix) -> str | None:
    front, _, rest = name.removesuffix(".weight").rpartition(".")
    for group in ALIKE:
        if rest not in group:
            continue
        for other in group:
            entry = matrix.entries.get(f"{front}.{other}.weight")
            if entry is not None and entry.sums.size == math.prod(tensor.shape[:-2]) * tensor.width:
                return f"{front}.{other}.weight"
    return None


def _shrunk(entry: Entry, min_rows: int) -> Entry:
    counts = entry.counts.astype(np.float64)
    lacking = np.maximum(0, min_rows - counts)[:, None]

    def shrunk(sums: Floats) -> Floats:
        seen = counts > 0
        mean = sums[seen].astype(np.float64).sum(axis=0) / counts[seen].sum()
        own = np.where(seen[:, None], sums, 0)  # an expert without inputs may have any
        more: Floats = (own + lacking * mean).astype(np.float32)
        return more

    inputs = None if entry.inputs is None else shrunk(entry.inputs)
    return Entry(shrunk(entry.sums), (counts + lacking[:, 0]).astype(np.float32), inputs)
