"""Estimate what a release takes: seconds of each part on this machine, and bytes of its disk.

Speeds are measured for a moment: of a product of matrices, of encoding a few rows in each format, of the first bytes
from the hub. What a part needs of them was fitted to runs of SmolLM2-135M on two processors. So times are right within
a factor of two or so, and for models that do not fit into memory less.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from quants.arguments import thread_count

from ...io.stores.hub import connect
from ...measurement.texts import NamedText, default_texts, named_texts
from ...models.model import Model
from ..cards.folder import RESULTS
from ..hub.fetching import FetchReport, fetch, repository_name
from .plan import DISK_RATE, PlannedFile, ReleasePlan, in_passes, is_there
from .run import source_copy
from .settings import NO_IMATRIX, OWN_TEXTS, ReleaseOptions, is_matrix, is_on_hub

N_CTX, AT_ONCE = 512, 2048  # tokens of a window, and of windows that are read in one pass over the weights
BYTES_A_TOKEN = 4
OWN_CHUNKS = 128  # windows of each text that a calibration reads
EXPERTS = "_exps."
PROBE, TRIES = (512, 2048, 2048), 10  # a product of matrices, of which the fastest counts
PROBE_BYTES = 4 << 20  # from the hub
# Seconds of one processor for each weight, and how often the texts are run.
SEARCH, SEARCH_PASSES = 0.6e-6, 1
FEEDBACK, FEEDBACK_PASSES = 2e-6, 2


@dataclass(frozen=True)
class Estimate:
    """What a release takes. seconds: of each part that is made; disk_bytes: that must be free; fetch_bytes: from the
    hub.
    """

    seconds: dict[str, float]
    disk_bytes: int
    fetch_bytes: int


def estimate(
    source: str, plan: ReleasePlan, settings: ReleaseOptions, threads: int | None = None, *, only_disk: bool = False
) -> Estimate:
    """Estimate what is left to make of a plan; only_disk: no times."""
    missing = [each for each in plan.files if settings.does("quantize") and not is_there(plan.folder / each.path)]
    is_read = missing or (settings.does("measure") and not (plan.folder / RESULTS).is_file())
    fetched = fetch(source, source_copy(plan, settings), dry_run=True) if is_read and is_on_hub(source) else None
    fetch_bytes = 0 if fetched is None else fetched.to_fetch_bytes
    disk = fetch_bytes + sum(each.nbytes for each in missing)
    if settings.gptq and missing:  # weights that are encoded ahead stay until they are written
        disk += max(sum(each.nbytes for each in group) for group in in_passes(missing))
    seconds = {} if only_disk else _seconds(plan, settings, thread_count(threads), missing)
    if fetched is not None and not only_disk and fetch_bytes:
        seconds = {"fetch": fetch_bytes / _download_rate(source, fetched), **seconds}
    return Estimate({name: round(value, 1) for name, value in seconds.items()}, disk, fetch_bytes)


def _seconds(plan: ReleasePlan, settings: ReleaseOptions, threads: int, missing: list[PlannedFile]) -> dict[str, float]:
    """Return the seconds of each part that is not done."""
    model, does, seconds = plan.model, settings.does, dict[str, float]()
    for part in plan.parts:
        if does(part):
            seconds[part] = model.nbytes / 10 / DISK_RATE
    if does("imatrix") and settings.imatrix != NO_IMATRIX and not is_matrix(settings.imatrix):
        texts = default_texts() if settings.imatrix == OWN_TEXTS else named_texts([settings.imatrix])
        seconds["imatrix"] = _pass_seconds(model, _tokens(texts, settings.imatrix_chunks), threads)
    if stock := [each for each in missing if not each.target]:
        share = len(stock) / sum(not each.target for each in plan.files)
        moved = model.nbytes + sum(each.nbytes for each in stock)
        seconds["quantize"] = share * plan.seconds / threads + moved / DISK_RATE
    texts = [*(named_texts([*settings.gptq]) if settings.gptq else []), *default_texts()]
    tokens, values = _tokens(texts, OWN_CHUNKS), _values(model)[0]
    if settings.gptq and missing:
        each_file = FEEDBACK_PASSES * _pass_seconds(model, tokens, threads) + FEEDBACK * values / threads
        seconds["gptq"] = each_file * len(missing)
    if searched := [each for each in missing if each.target]:
        each_file = SEARCH_PASSES * _pass_seconds(model, tokens, threads) + SEARCH * values / threads
        seconds["search"] = each_file * len(searched)
    if does("measure"):
        texts = named_texts([*settings.texts]) if settings.texts else default_texts()
        tokens = _tokens(texts, settings.chunks)
        seconds["measure"] = (1 + len(plan.files)) * _pass_seconds(model, tokens, threads)
    return seconds


def _pass_seconds(model: Model, tokens: int, threads: int) -> float:
    """Return the seconds that a model takes to read texts."""
    active = _values(model)[1]
    return 2 * active * tokens / _product_rate(threads) + -(-tokens // AT_ONCE) * model.nbytes / DISK_RATE


def _values(model: Model) -> tuple[int, int]:
    """Return a model's number of weights, and of those that a token is multiplied with."""
    metadata, architecture = model.metadata, model.architecture
    used, experts = (metadata.get(f"{architecture}.{key}") for key in ("expert_used_count", "expert_count"))
    share = used / experts if isinstance(used, int) and isinstance(experts, int) and 0 < used <= experts else 1.0
    of_experts = sum(tensor.size for name, tensor in model.tensors.items() if EXPERTS in name)
    total = sum(tensor.size for tensor in model.tensors.values())
    return total, int(total - of_experts * (1 - share))


def _tokens(texts: Iterable[NamedText], chunks: int) -> int:
    """Return roughly the tokens that are read of texts."""
    return sum(min(chunks, max(1, each.path.stat().st_size // BYTES_A_TOKEN // N_CTX)) * N_CTX for each in texts)


@cache
def _product_rate(threads: int) -> float:
    """Return the operations a second of a product of matrices on so many processors."""
    rows, width, columns = PROBE
    left, right = np.ones((rows, width), np.float32), np.ones((width, columns), np.float32)
    fastest = min(_timed(lambda: left @ right) for _ in range(TRIES))
    return 2 * rows * width * columns / fastest * min(1.0, threads / thread_count(None))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _download_rate(source: str, fetched: FetchReport) -> float:
    """Return the bytes a second that the hub sends, by the beginning of the largest file."""
    largest = max(fetched.files, key=lambda each: each.size_bytes)
    wanted = min(PROBE_BYTES, largest.size_bytes)
    repository = connect(repository_name(source))
    return wanted / max(1e-9, _timed(lambda: repository.fetch(largest.file, 0, wanted)))
