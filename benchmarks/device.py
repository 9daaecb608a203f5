"""Speed, memory and noise of measurements on one device, beside what it reaches with a plain product.

    python -m benchmarks.device                              # on the first GPU, in less than 8 minutes
    python -m benchmarks.device --device cuda:1 --minutes 4 --json device.json
    python -m benchmarks.device --device cpu --small         # torch on the processor: only that the script works
    python -m benchmarks.device --table                      # what cards measure in theory, for docs/device.md

Models have the shapes of published ones and random weights, all layers the same, read from memory: disks are measured
in "read a file" alone. The text is examples/persuasion.txt, several times. "tokens per second" of a resident model is
between a short and a long run, so that loading does not count; "with loading" is all of the long run. A section that
would end after --minutes is left out, with a line that says so. Needs the extra `device`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gguftools
from benchmarks.synthetic_models import SHAPES, synthetic_model
from gguftools import DeviceOptions, DivergenceOptions, ImatrixOptions, PerplexityOptions
from gguftools.calibration.texts import Calibration
from gguftools.measurement.cards import CARDS, GIB, Card
from gguftools.measurement.device_plan import MEMORY_SHARE, RESERVED, CardPlan, PlanOptions, device_plan
from gguftools.measurement.texts import named_texts
from runtime.graph.placement import SHARE, bytes_of

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
N_CTX, WINDOWS, FEW = 512, 200, 20  # 200 windows are 102,400 tokens
GOALS = {"resident": 0.5, "streamed": 0.4}  # share of the measured peak
BYTES_OF_VALUES = 3e9  # of a batch, next to the weights
IMATRIX_GOAL = 1.15  # times the time of perplexity
TABLE = {"8B": "llama-3.1-8b", "32B": "qwen3-32b", "70B": "llama-3-70b", "671B, experts": "deepseek-v3-671b"}


@dataclass(frozen=True)
class Sizes:
    """What is measured: shapes by role, windows, and the size of plain products."""

    resident: str = "llama-3.1-8b"
    large: str = "qwen3-32b"
    experts: str = "qwen3-30b-a3b"
    windows: int = WINDOWS
    few: int = FEW
    product: int = 8192
    layers_of_file: int = 3
    calibration: int = 32  # windows


SMALL = Sizes("small", "small", "small-experts", 4, 2, 512, 2, 4)


@dataclass
class Run:
    """One run of the script: the device, its measured peaks, and the results so far. card: the same, for plans."""

    device: str
    sizes: Sizes
    folder: Path
    ends: float
    title: str = ""
    card: Card | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    def left(self) -> float:
        return self.ends - time.monotonic()

    def add(self, section: str, seconds: float, **figures: Any) -> None:
        """Store and print a result."""
        self.results.append({"section": section, "device": self.title, "seconds": seconds, **figures})
        shown = "  ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in figures.items())
        print(f"{section:44} {seconds:7.1f} s  {shown}", flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def synchronize(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
    elif device.startswith("xpu"):
        torch.xpu.synchronize(device)


def peak_memory(device: str) -> int:
    """Return the largest number of bytes that torch has had there since the last call, 0 where it does not count."""
    import torch

    if not device.startswith(("cuda", "xpu")):
        return 0
    module = torch.cuda if device.startswith("cuda") else torch.xpu
    peak = int(module.max_memory_allocated(device))
    module.reset_peak_memory_stats(device)
    return peak


def product_rate(device: str, n: int, tf32: bool) -> float:
    """Return operations a second of a plain torch product (n, n) @ (n, n), the best of some."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    seconds = []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        a @ b
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * n**3 / min(seconds)


def copy_rate(device: str, n: int) -> float:
    """Return bytes a second that the device reads and writes of its own memory."""
    import torch

    x = torch.zeros(n * n, device=device)
    y, seconds = torch.empty_like(x), []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        y.copy_(x)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * x.nbytes / min(seconds)


def link_rate(device: str, n: int) -> float:
    """Return bytes a second from a pinned buffer of the host to the device."""
    import torch

    x = torch.zeros(n * n)
    x = x.pin_memory() if device.startswith("cuda") else x
    y, seconds = torch.empty(n * n, device=device), []
    for _ in range(4):
        synchronize(device)
        start = time.perf_counter()
        y.copy_(x, non_blocking=True)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return x.nbytes / min(seconds)


def measure_peaks(run: Run) -> None:
    """Measure what the device reaches in plain operations; later figures are shares of it."""
    start, n = time.perf_counter(), run.sizes.product
    exact, tf32 = (product_rate(run.device, n, fast) for fast in (False, True))
    memory, link = copy_rate(run.device, n), link_rate(run.device, n)
    room = _free_bytes(run.device)
    fast = tf32 if tf32 > 1.2 * exact else None
    run.card = Card(run.title, room, exact, fast, memory / MEMORY_SHARE, link, "measured")
    figures: dict[str, Any] = {"float32_tflops": exact / 1e12, "tf32_tflops": tf32 / 1e12, "memory_gb_s": memory / 1e9}
    run.add("peaks", time.perf_counter() - start, **figures, link_gb_s=link / 1e9, free_gib=room / GIB)


def _free_bytes(device: str) -> int:
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    if device.startswith("mps"):
        return int(torch.mps.recommended_max_memory())
    if device.startswith("xpu"):
        return int(torch.xpu.mem_get_info(device)[0])
    return 8 * GIB


def text_of(folder: Path, windows: int) -> Path:
    """Write a text of at least so many windows."""
    path = folder / f"text-{windows}.txt"
    tokens = 34_000  # of one copy
    path.write_text((EXAMPLES / "persuasion.txt").read_text("utf-8") * (1 + windows * N_CTX // tokens), "utf-8")
    return path


def perplexity_seconds(run: Run, model: Any, windows: int, device: DeviceOptions) -> float:
    """Return the seconds of an evaluation: without the test of the device before it."""
    text, options = text_of(run.folder, windows), PerplexityOptions(device=device)
    report = gguftools.perplexity(model, text, n_ctx=N_CTX, chunks=windows, options=options)
    return report.tokens / report.tokens_per_second


def imatrix_seconds(run: Run, model: Any, windows: int, device: DeviceOptions) -> float:
    text, options, start = text_of(run.folder, windows), ImatrixOptions(device=device), time.perf_counter()
    gguftools.imatrix(model, text, n_ctx=N_CTX, chunks=windows, options=options)
    return time.perf_counter() - start


def measure_perplexity(run: Run, name: str, placement: str, fast: bool, model: Any, memory: int | None) -> None:
    """Measure tokens a second, and the share of the measured peak. memory: bytes for weights, None for most."""
    device = DeviceOptions(run.device, memory, fast)
    peak_memory(run.device)
    few, many = (perplexity_seconds(run, model, each, device) for each in (run.sizes.few, run.sizes.windows))
    assert run.card is not None
    planned = device_plan([model], run.sizes.windows, [run.card], PlanOptions(memory=memory))
    flop = sum(planned.files[0].flop.values())
    all_tokens, rest = run.sizes.windows * N_CTX, (run.sizes.windows - run.sizes.few) / run.sizes.windows
    between = max(1e-9, many - few)
    resident = placement == "resident"
    seconds, tokens, counted = (between, all_tokens * rest, flop * rest) if resident else (many, all_tokens, flop)
    share = counted / seconds / run.card.rate(fast)
    run.add(
        f"perplexity, {name}, {placement}, {'TF32' if fast else 'float32'}",
        few + many,
        tokens=all_tokens,
        tokens_per_second=tokens / seconds,
        tokens_per_second_with_loading=all_tokens / many,
        share_of_peak=share,
        goal=GOALS[placement],
        peak_memory_gb=peak_memory(run.device) / 1e9,
    )


def measure_imatrix(run: Run, fast: bool) -> None:
    """Measure how much longer an importance matrix takes than perplexity, both without loading."""
    model, device = synthetic_model(run.sizes.resident), DeviceOptions(run.device, None, fast)
    windows = run.sizes.few, run.sizes.windows
    start = time.perf_counter()
    few, many = (imatrix_seconds(run, model, each, device) for each in windows)
    plain_few, plain_many = (perplexity_seconds(run, model, each, device) for each in windows)
    ratio = max(1e-9, many - few) / max(1e-9, plain_many - plain_few)
    name = f"imatrix beside perplexity, {run.sizes.resident}, {'TF32' if fast else 'float32'}"
    run.add(name, time.perf_counter() - start, ratio=ratio, goal=IMATRIX_GOAL)


def measure_file(run: Run, format: str) -> None:
    """Measure bytes a second of a file that goes layer by layer through the device, from the disk."""
    start, path = time.perf_counter(), run.folder / f"{format}.gguf"
    synthetic_model(run.sizes.resident, layers=run.sizes.layers_of_file, format=format).save(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    memory = max(1 << 26, path.stat().st_size // 4)  # with room for a batch's values
    seconds = perplexity_seconds(run, path, run.sizes.few, DeviceOptions(run.device, memory, True))
    size, rate = path.stat().st_size / 1e9, path.stat().st_size / seconds / 1e9
    path.unlink()
    run.add(f"read a file of {format} layer by layer", time.perf_counter() - start, gigabytes=size, gb_s=rate)


def measure_gptq(run: Run) -> None:
    """Measure the seconds that error feedback adds, for a billion weights."""
    model = synthetic_model(run.sizes.resident, layers=run.sizes.layers_of_file)
    weights = sum(each.size for each in model.tensors.values() if each.name.startswith("blk.") and len(each.shape) > 1)
    text = named_texts(str(text_of(run.folder, run.sizes.calibration)))
    calibration = Calibration(tuple(text), False, chunks=run.sizes.calibration, device=DeviceOptions(run.device))
    start, seconds, write = time.perf_counter(), [], gguftools.WriteOptions(overwrite=True)
    for gptq in (None, calibration):
        begun = time.perf_counter()
        gguftools.quantize(model, "Q4_K", run.folder / "quantized.gguf", gptq=gptq, write=write)
        seconds.append(time.perf_counter() - begun)
    each = (seconds[1] - seconds[0]) / (weights / 1e9)
    run.add(f"GPTQ, {run.sizes.layers_of_file} layers", time.perf_counter() - start, seconds_per_billion_weights=each)


def measure_noise(run: Run) -> None:
    """Measure the KL divergence between the processor, float32 and TF32 on a small trained model, austen-4m."""
    start, text, base = time.perf_counter(), text_of(run.folder, 32), run.folder / "base.gguf"
    model = EXAMPLES / "austen-4m"
    exact, fast = (DeviceOptions(run.device, None, each) for each in (False, True))
    found = {}
    for name, first, second in (("processor_to_float32", None, exact), ("float32_to_tf32", exact, fast)):
        options = DivergenceOptions(save_base=base, overwrite=True, with_output=True, device=first)
        gguftools.divergence(model, text=text, n_ctx=N_CTX, chunks=16, options=options)
        report = gguftools.divergence(base, model, text=text, options=DivergenceOptions(device=second))
        found[name] = report.files[0].kl_divergence["mean"]
    run.add("noise, nats of KL divergence, austen-4m", time.perf_counter() - start, **found)


def seconds_of(run: Run, name: str, fast: bool, memory: int | None) -> float:
    """Return how long a section of perplexity will take at most, by the plan."""
    assert run.card is not None
    options = PlanOptions(memory=memory, fast=fast, disk=5_000_000_000)
    plan = device_plan([synthetic_model(name, empty=True)], run.sizes.windows + run.sizes.few, [run.card], options)
    return 5 + 1.5 * plan.cards[0].total


def sections(run: Run) -> Iterator[tuple[str, float, Callable[[], None]]]:
    """Yield each section: its name, the seconds that it may take, and what does it; the important ones first."""
    sizes, some = run.sizes, 0.15
    room = None if run.card is None else run.card.memory
    small = 0 if room is None else int(min(room * some, _bytes_of(sizes.resident) / 3))
    for fast in (True, False):
        kind = "TF32" if fast else "float32"
        for name, placement, memory in (
            (sizes.resident, "resident", None),
            (sizes.resident, "streamed", small),
            (sizes.large, "streamed", max(small, _bytes_of(sizes.large) // 4)),
        ):
            work = _work(run, name, placement, fast, memory)
            yield f"perplexity, {name}, {placement}, {kind}", seconds_of(run, name, fast, memory), work
        if fast:
            yield "imatrix", 4 * seconds_of(run, sizes.resident, fast, None), lambda: measure_imatrix(run, True)
            yield "noise", 30, lambda: measure_noise(run)
            yield "file of F16", 60, lambda: measure_file(run, "F16")
            yield "file of Q4_K", 60, lambda: measure_file(run, "Q4_K")
            yield "GPTQ", 90, lambda: measure_gptq(run)
    experts = max(small, _bytes_of(sizes.experts) // 4)
    work = _work(run, sizes.experts, "streamed", True, experts)
    yield f"perplexity, {sizes.experts}", seconds_of(run, sizes.experts, True, experts), work


def _work(run: Run, name: str, placement: str, fast: bool, memory: int | None) -> Callable[[], None]:
    return lambda: measure_perplexity(run, name, placement, fast, synthetic_model(name), memory)


def _bytes_of(name: str) -> int:
    return bytes_of(synthetic_model(name, empty=True).tensors.values())


def run_all(run: Run) -> None:
    """Run all sections for which there is time."""
    measure_peaks(run)
    for name, seconds, work in sections(run):
        if seconds > run.left():
            print(f"{name:44} left out: about {seconds:.0f} s, and {max(0.0, run.left()):.0f} s are left", flush=True)
            run.results.append({"section": name, "device": run.title, "left_out": True})
            continue
        work()


def card_table(cards: Sequence[Card] = CARDS) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table: what cards measure by the plan, with 51,200 tokens of perplexity."""
    models = [synthetic_model(shape, empty=True) for shape in TABLE.values()]
    plans = [
        [device_plan([model], 100, cards, PlanOptions(processors=8, fast=fast)) for fast in (False, True)]
        for model in models
    ]
    rows = []
    for number, card in enumerate(cards):
        cells = [_cell(*(plan.cards[number] for plan in both)) for both in plans]
        stays = int(((card.memory - RESERVED) * SHARE - BYTES_OF_VALUES) / 2e9)
        rows.append([card.name, f"{card.memory / GIB:.0f} GiB", f"{stays}B", *cells])
    return ["card", "memory", "stays on it", *TABLE], rows


def _cell(exact: CardPlan, fast: CardPlan) -> str:
    if not exact.fits:
        return "too large"
    times = [_minutes(each.total) for each in (exact, fast)]
    quicker = f" ({times[1]})" if times[1] != times[0] else ""
    return f"{times[0]}{quicker}{'' if exact.placement == 'resident' else ' ↻'}"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def main(given: Sequence[str] | None = None) -> None:
    """Run the sections, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="as of gguftools: auto, cuda, cuda:N, mps, xpu, cpu")
    parser.add_argument("--small", action="store_true", help="small models, few tokens: whether the script works")
    parser.add_argument("--minutes", type=float, default=8, help="time for all sections")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    parser.add_argument("--table", action="store_true", help="print the table of docs/device.md; runs nothing")
    options = parser.parse_args(given)
    if options.table:
        columns, rows = card_table()
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)))
        return
    from gguftools.models.devices import torch_device_for

    device = torch_device_for(options.device)
    if device is None:
        parser.error("torch finds no GPU here; --device cpu --small shows that the script works")
    with tempfile.TemporaryDirectory(prefix="gguftools-device-") as folder:
        sizes = SMALL if options.small else Sizes()
        run = Run(str(device.device), sizes, Path(folder), time.monotonic() + 60 * options.minutes, device.title)
        print(f"{device.title}: weights are random and read from memory, the same bytes for all layers", flush=True)
        try:
            run_all(run)
        finally:
            if options.json:
                known = None if run.card is None else asdict(replace(run.card, name=run.title))
                shapes = {name: asdict(SHAPES[name]) for name in {sizes.resident, sizes.large, sizes.experts}}
                document = {"device": run.title, "card": known, "shapes": shapes, "results": run.results}
                options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
