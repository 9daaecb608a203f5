"""Define the types of the `--json` output of all commands, with one vocabulary.

`file`: a path as it was given or written; `size_bytes`, and other sizes that end in `_bytes`: bytes; `bits_per_weight`:
of tensor data; `standard_error`, or a figure's name with it: one standard error; `verdict`: "ok", "wrong" or "not
applicable"; shares are numbers from 0 to 1; times are in seconds. Each printed object has `format_version`, too.
"""

# ruff: noqa: D101  (most classes need no more than their names and keys)

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from ..conversion.demo import Row
from ..conversion.export import ExportReport
from ..inspection.audits.finding import Finding
from ..inspection.catalogue import ArchitectureInfo, FormatInfo
from ..inspection.compare import TensorDifference
from ..inspection.digests import ManifestCheck
from ..inspection.drafting import DraftingReport
from ..inspection.graph import ModelGraph
from ..inspection.validation import ValidationReport
from ..lab.drafts import TemperatureFigures
from ..lab.graph_values import Comparison
from ..lab.reproduction import Attestation, TensorCheck, Verification
from ..measurement.device_plan import DevicePlan
from ..measurement.divergence_report import Text
from ..measurement.evaluation_report import EvaluationReport
from ..measurement.perplexities import PerplexityTable
from ..measurement.perplexity import PerplexityReport
from ..publish.cards.card import CardReport
from ..publish.hub.fetching import FetchReport
from ..publish.hub.uploading import UploadReport
from ..publish.release.release import ReleaseReport
from ..quantization.imatrix import EntrySummary, Problem
from ..quantization.imatrix_doctor import Finding as MatrixFinding
from ..writing.report import LogitReport
from ..writing.work_plan import WorkPlan

OkOrWrong = Literal["ok", "wrong"]


class Store(TypedDict):
    """Bytes read from a store, sent to it, and copied by the store itself."""

    read: int
    sent: int
    copied: int


class TypeSum(TypedDict):
    tensors: int
    size_bytes: int


_QuantizedTensor = TypedDict(
    "_QuantizedTensor",
    {
        "name": str,
        "shape": list[int],
        "from": str,
        "to": str,
        "size_bytes": int,
        "fallback": str | None,
        "rule": str | None,
    },
)


class QuantizedTensor(_QuantizedTensor, total=False):
    """A tensor and its formats. rmse, max_error, seconds: after a run, None where nothing was measured."""

    feedback: dict[str, Any]
    rmse: float | None
    max_error: float | None
    seconds: float | None


class _Output(TypedDict):
    recipe: str
    file: str
    files: list[str]
    size_bytes: int
    bits_per_weight: float
    types: dict[str, TypeSum]
    tensors: list[QuantizedTensor]


class Output(_Output, total=False):
    """The file of one recipe, or a split set whose first shard is `file`."""

    manifest: str


_Transcoded = TypedDict(
    "_Transcoded",
    {
        "name": str,
        "shape": list[int],
        "from": str,
        "to": str | None,
        "reason": str | None,
        "blocks": int,
        "inexact": int,
        "rounded": int,
        "as_rounded": int,
    },
)


class Transcoded(_Transcoded, total=False):
    nearest: float
    row: int
    column: int


class _Quantization(TypedDict):
    outputs: list[Output]
    dry_run: bool
    source_bytes: int
    free_bytes: int
    fits: bool
    resumed_bytes: int
    seconds: float
    compile_seconds: float
    without_importance: list[str]
    warnings: list[str]


class Quantization(_Quantization, total=False):
    """What a conversion or quantization wrote, or would write."""

    check: LogitReport
    work: WorkPlan
    search: dict[str, Any]
    transcoding: list[Transcoded]


class RecipeInfo(TypedDict):
    name: str
    bits_per_weight: float
    format: str | None
    description: str


class FrontierPoint(TypedDict):
    bits_per_weight: float
    size_bytes: int
    predicted: float
    measured: float
    recipe: str


class Frontier(TypedDict):
    source: str
    points: list[FrontierPoint]


class Endianness(TypedDict):
    files: list[str]
    byte_order: str
    size_bytes: int


class Shard(TypedDict):
    file: str
    tensors: int
    size_bytes: int


class Shards(TypedDict):
    """A split set, and the file that has it all."""

    file: str
    size_bytes: int
    shards: list[Shard]
    dry_run: bool
    warnings: list[str]
    store: Store | None


class Patch(TypedDict):
    files: list[str]
    size_bytes: int
    copied: int
    fresh: int
    ranges: int
    dry_run: bool
    warnings: list[str]
    store: Store | None


class MovedTensor(TypedDict):
    name: str
    donor: str
    donor_name: str
    size_bytes: int


class KeyDifference(TypedDict):
    key: str
    kind: str
    a: str | None
    b: str | None
    note: str | None


class Graft(TypedDict):
    file: str
    size_bytes: int
    moved: list[MovedTensor]
    removed: list[str]
    keys: list[KeyDifference]
    experts: dict[str, list[int]]
    merged: dict[str, dict[str, list[int]]]
    scores: dict[str, list[float]]
    warnings: list[str]
    dry_run: bool
    divergence: "Divergence | None"
    store: Store | None


class LayerSplit(TypedDict):
    neurons: int
    on_gpu: int


class GpuSplit(TypedDict):
    file: str
    model: str
    vram_bytes: int
    used_bytes: int
    activations: float
    optimal: bool
    layers: list[LayerSplit]


class _Change(TypedDict):
    key: str


class Change(_Change, total=False):
    """A key that changes, with its values in brief; without `old` it is new, without `new` removed."""

    old: str
    new: str
    old_key: str


class Edit(TypedDict):
    file: str
    changes: list[Change]
    in_place: bool
    bytes_written: int
    warnings: list[str]
    preview: str | None
    recovered: str | None
    dry_run: bool
    store: Store | None


class Digest(TypedDict):
    algorithm: str
    hash: str
    file: str
    tensor: str | None


class Diff(TypedDict):
    a: str
    b: str
    differ: bool
    summary: str
    metadata: list[KeyDifference]
    tensors: list[TensorDifference]


class Errors(TypedDict):
    values: int
    size_bytes: int
    bits_per_weight: float
    rmse: float
    max_error: float
    relative: float | None
    weighted: float | None
    sqnr: float | None
    non_finite: int


class ErrorsOfTensor(Errors):
    name: str
    kind: str
    layer: int
    shape: list[int]
    a: str
    b: str
    weighted_by_expert: list[float | None]


class OtherShape(TypedDict):
    name: str
    a: list[int]
    b: list[int]


class WeightErrors(TypedDict):
    """Errors of B's weights, compared with A's."""

    a: str
    b: str
    imatrix: str | None
    summary: str
    total: Errors
    kinds: dict[str, Errors]
    layers: dict[str, Errors]
    tensors: list[ErrorsOfTensor]
    only_a: list[str]
    only_b: list[str]
    shapes: list[OtherShape]
    unread: list[str]
    warnings: list[str]


class Identification(TypedDict):
    """How a file was made of an original."""

    original: str
    file: str
    summary: str
    explained: bool
    recipe: str
    pure: bool
    also: list[str]
    declared: str | None
    declared_imatrix: str | None
    imatrix: str | None
    made: dict[str, int]
    rules: dict[str, str]
    command: str | None
    rows: int
    of_rows: int
    tensors: list[dict[str, Any]]
    only_original: list[str]
    only_file: list[str]
    other_shapes: list[str]
    warnings: list[str]


class Audit(TypedDict):
    file: str
    worst: str | None
    templates: list[str]
    findings: list[Finding]


class _TensorInfo(TypedDict):
    name: str
    type: str
    shape: list[int]
    size_bytes: int


class TensorInfo(_TensorInfo, total=False):
    offset: int


class _Show(TypedDict):
    file: str
    alignment: int
    summary: dict[str, Any]
    metadata: dict[str, dict[str, Any]]
    assumed: dict[str, dict[str, Any]]
    tensors: list[TensorInfo]


class Show(_Show, total=False):
    """A file without its tensors' data; of long arrays the first items. version, byte_order: of a GGUF file."""

    version: int
    byte_order: str


class Check(TypedDict):
    name: str
    verdict: Literal["ok", "wrong", "not applicable"]
    seen: str
    lines: list[str]
    figures: dict[str, Any]


class Checks(TypedDict):
    file: str
    against: str | None
    verdict: OkOrWrong
    checks: list[Check]


class RenderedText(TypedDict):
    name: str
    text: str | None
    error: str | None


class ChatTemplate(TypedDict):
    file: str
    texts: list[RenderedText]


class ChatTemplateComparison(TypedDict):
    file: str
    other: str
    verdict: OkOrWrong
    differences: dict[str, list[str]]


class _Tokens(TypedDict):
    file: str
    count: int
    prompt_count: int


class Tokens(_Tokens, total=False):
    ids: list[int]
    pieces: list[str]


class LayerImportance(TypedDict):
    layer: int
    importance: float


class Imatrix(TypedDict):
    """An importance matrix in figures."""

    file: str
    datasets: list[str]
    chunks: int
    chunk_size: int
    entries: list[EntrySummary]
    layers: list[LayerImportance]
    problems: list[Problem]


class _ImatrixInfo(Imatrix):
    findings: list[MatrixFinding]


class ImatrixInfo(_ImatrixInfo, total=False):
    statistics: dict[str, list[dict[str, Any]]]


class FileDivergence(TypedDict):
    """A file's predictions compared with the base's. kl_divergence and the like: mean, standard_error, percentiles."""

    file: str
    size_bytes: int
    bits_per_weight: float
    type: str
    perplexity: float
    perplexity_standard_error: float
    perplexity_ratio: float
    perplexity_ratio_standard_error: float
    perplexity_difference: float
    perplexity_difference_standard_error: float
    log_ratio: float
    log_ratio_standard_error: float
    correlation: float | None
    kl_divergence: dict[str, float | None]
    kl_reverse: dict[str, float | None]
    total_variation: dict[str, float | None]
    entropy_change: dict[str, float | None]
    acceptance: dict[str, float | None]
    p_change: dict[str, float | None]
    same_top: float
    same_top_standard_error: float
    flips: float
    lower_bound: bool
    texts: dict[str, dict[str, Any]]
    positions: dict[str, list[float]]
    histogram: dict[str, list[float]]
    chunks: list[float]
    worst: list[dict[str, Any]]


class Divergence(TypedDict):
    base: str
    n_ctx: int
    precision: str
    products: str
    texts: list[Text]
    base_perplexity: float
    base_perplexity_standard_error: float
    base_entropy: float
    files: list[FileDivergence]
    warnings: list[str]
    device: str
    noise_floor: float | None
    noise_floor_max: float | None


class Draft(TypedDict):
    """A draft and what it gains. cost_ratio, verify, last_cost, draw_cost: one token of the model costs 1."""

    name: str
    kind: str
    obstacles: list[str]
    edits: list[str]
    notes: list[str]
    size_bytes: int
    cost_ratio: float | None
    cost_source: str | None
    bytes_ratio: float | None
    verify: list[float]
    last_cost: float | None
    draw_cost: float | None
    offered: float | None
    agreement: float | None
    runs: dict[str, Any] | None
    temperatures: list[TemperatureFigures]
    possible: bool


class DraftCheck(TypedDict):
    target: str
    n_ctx: int
    texts: list[Text]
    verify: list[float]
    verify_source: str
    seed: int
    possible: bool
    drafts: list[Draft]
    best: list[dict[str, Any]]
    warnings: list[str]


class _EmbeddedText(TypedDict):
    tokens: int


class EmbeddedText(_EmbeddedText, total=False):
    """A text's tokens and its vector; with pooling none a vector for each token."""

    embedding: list[Any]


class Embeddings(TypedDict):
    file: str
    output: str | None
    device: str
    pooling: str
    normalize: int
    width: int
    truncated: list[int]
    labels: list[str]
    texts: list[EmbeddedText]


class TopToken(TypedDict):
    token: int
    logprob: float | None


class TokenLogprobs(TypedDict):
    token: int
    logprob: float | None
    rank: int
    top: list[TopToken]


class _Generation(TypedDict):
    file: str
    prompt_tokens: int
    tokens: list[int]
    text: str
    stop_reason: str | None
    stopped_by: str | int | None
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    cache_bytes: int
    device: str


class Generation(_Generation, total=False):
    """A text. cycles, drafted, accepted: with a draft model alone."""

    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs | None]
    cycles: int
    drafted: int
    accepted: int


class NodeValues(TypedDict):
    file: str
    architecture: str
    tokens: list[int]
    precision: str
    nodes: list[dict[str, Any]]


class MemoryBytes(TypedDict):
    """Memory on the device, and in RAM; a compute buffer is the largest that it may be."""

    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    encoder_bytes: int
    device_bytes: int
    ram_weights_bytes: int
    ram_cache_bytes: int
    ram_compute_bytes: int
    ram_output_bytes: int
    ram_bytes: int


class FittedFile(TypedDict):
    """estimated: what of the architecture is not modelled. whole: with all layers in place. plan: what fits."""

    file: str
    architecture: str
    size_bytes: int
    trained_context: int
    estimated: str | None
    compute_low_bytes: int
    fits: bool
    whole: MemoryBytes
    plan: MemoryBytes
    gpu_layers: int
    layers: int
    cpu_moe: int
    longest_context: int | None
    command: list[str]


class Fit(TypedDict):
    memory_bytes: int | None
    margin_bytes: int
    context: int
    parallel: int
    cache_type_k: str
    cache_type_v: str
    cpu: bool
    files: list[FittedFile]
    chosen: str | None


class Reproduction(TypedDict):
    file: str
    source: str
    manifest: str | None
    made: str
    verdict: OkOrWrong
    summary: str
    causes: list[str]
    keys: list[KeyDifference]
    layout: list[str]
    sample: "DrawnSample | None"
    warnings: list[str]
    tensors: list[TensorCheck]


class DrawnSample(TypedDict):
    count: int
    of: int
    seed: int
    missed: float


PRINTED: Mapping[str, tuple[Any, ...]] = {  # by command: what it prints, one object or, of several files, a list
    "architectures": (list[ArchitectureInfo],),
    "attest": (Attestation, Verification),
    "audit": (Audit, list[Audit]),
    "card": (CardReport,),
    "chat-template": (ChatTemplate, ChatTemplateComparison),
    "check": (Checks,),
    "convert": (Quantization,),
    "convert-endian": (Endianness,),
    "demo": (list[Row],),
    "diff": (Diff, WeightErrors, Identification, DraftingReport),
    "divergence": (Divergence,),
    "draft-check": (DraftCheck,),
    "embed": (Embeddings,),
    "evaluate": (EvaluationReport,),
    "export": (ExportReport,),
    "fit": (Fit,),
    "fetch": (FetchReport,),
    "formats": (list[FormatInfo],),
    "generate": (Generation, list[Generation]),
    "gpu-split": (GpuSplit,),
    "graft": (Graft,),
    "graph": (ModelGraph, NodeValues, Comparison),
    "hash": (list[Digest], list[ManifestCheck]),
    "imatrix": (Imatrix, DevicePlan),
    "imatrix-info": (ImatrixInfo, list[ImatrixInfo]),
    "merge": (Shards,),
    "patch": (Patch,),
    "perplexity": (PerplexityReport, PerplexityTable, DevicePlan),
    "quantize": (Quantization, list[RecipeInfo], Frontier),
    "release": (ReleaseReport,),
    "reproduce": (Reproduction,),
    "set-metadata": (Edit,),
    "show": (Show, list[Show]),
    "split": (Shards,),
    "tokenize": (Tokens,),
    "upload": (UploadReport,),
    "validate": (ValidationReport, list[ValidationReport]),
}
