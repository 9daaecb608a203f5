"""Workers that wait for a store: how 1, 2 and 4 of them share the work, and a plan for 671 billion weights on 64.

    python -m benchmarks.scaling MODEL-F16.gguf [--recipe Q4_K_M] [--latency 0.2] [--workers 64] [--rate 200M]

The source answers each read late, as a store does (`--latency` seconds). The plan is of DeepSeek-V3's shapes: bytes,
tasks and encoding times as measured here, no values.
"""

import argparse
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import gguftools
from archs.metadata import Metadata
from gguftools.cli.arguments import parse_size
from gguftools.models.sources import tensors_of_file
from gguftools.quantization.recipes import ModelFacts, Options, choose, recipe_named
from gguftools.writing.clusters import serve
from gguftools.writing.cost_model import CostModel
from gguftools.writing.items import Item
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan
from gguftools.writing.work_plan import WorkPlan, plan_work
from quants import Tensor, format_named


def late(path: Path, latency: float) -> Mapping[str, Tensor]:
    """The tensors of a file, each read of which waits first."""

    def read(tensor: Tensor, start: int, stop: int) -> NDArray[np.uint8]:
        time.sleep(latency)
        return tensor.raw(start, stop)

    return {name: replace(t, read=partial(read, t)) for name, t in tensors_of_file(path).items()}


def run(path: Path, recipe: str, latency: float, workers: int, folder: Path) -> float:
    """Seconds of a run on a warm pool of so many workers."""
    model = gguftools.open(path)
    model.origin = replace(model.origin, reopen=partial(late, path.absolute(), latency))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=serve) as pool:
        gguftools.quantize(model, recipe, folder / "warm.gguf", write=WriteOptions(executor=pool, overwrite=True))
        started = time.perf_counter()
        gguftools.quantize(model, recipe, folder / "out.gguf", write=WriteOptions(executor=pool, overwrite=True))
        return time.perf_counter() - started


def deepseek_v3() -> dict[str, tuple[int, ...]]:
    """Names and shapes of its weights as GGUF has them; experts are 97 % of them."""
    d, heads, layers = 7168, 128, 61
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (129280, d), "output.weight": (129280, d)}
    for layer in range(layers):
        b = f"blk.{layer}."
        shapes |= {
            f"{b}attn_q_a.weight": (1536, d),
            f"{b}attn_q_b.weight": (heads * 192, 1536),
            f"{b}attn_kv_a_mqa.weight": (576, d),
            f"{b}attn_kv_b.weight": (heads * 256, 512),
            f"{b}attn_output.weight": (d, heads * 128),
        }
        if layer < 3:
            shapes |= {f"{b}ffn_gate.weight": (18432, d), f"{b}ffn_up.weight": (18432, d)}
            shapes |= {f"{b}ffn_down.weight": (d, 18432)}
            continue
        shapes |= {f"{b}ffn_gate_exps.weight": (256, 2048, d), f"{b}ffn_up_exps.weight": (256, 2048, d)}
        shapes |= {f"{b}ffn_down_exps.weight": (256, d, 2048)}
        shapes |= {f"{b}ffn_gate_shexp.weight": (2048, d), f"{b}ffn_up_shexp.weight": (2048, d)}
        shapes |= {f"{b}ffn_down_shexp.weight": (d, 2048)}
    return shapes


def plan(recipe: str, cost_model: CostModel) -> WorkPlan:
    """What a recipe of DeepSeek-V3 in BF16 takes, by the formats that the recipe chooses for it."""
    bf16 = format_named("BF16")
    shapes = deepseek_v3()
    facts = ModelFacts("deepseek2", 61, 128, 1, 256)
    choices = choose(recipe_named(recipe), [(n, s, bf16) for n, s in shapes.items()], facts, False, Options())
    tensors = [Tensor(each.name, shapes[each.name], bf16, read=None) for each in choices]  # type: ignore[arg-type]
    items = [Item(tensor, each.format) for tensor, each in zip(tensors, choices, strict=True)]
    return plan_work([FilePlan(Path("deepseek-v3.gguf"), Metadata(), tuple(items))], cost_model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--recipe", default="Q4_K_M")
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rate", type=parse_size, default=200 << 20)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        seconds = {n: run(given.model, given.recipe, given.latency, n, Path(folder)) for n in (1, 2, 4)}
    for workers, each in seconds.items():
        print(f"{workers} workers: {each:6.2f} s, {seconds[1] / each:.2f} × one")
    found = plan(given.recipe, CostModel(given.workers, given.rate, 0.05))
    print(f"DeepSeek-V3, BF16 to {given.recipe}, {given.workers} workers at {given.rate >> 20} MiB/s each:")
    print(
        f"  {found.bytes_read / 1e12:.3f} TB read, {found.bytes_written / 1e9:.1f} GB written, {found.tasks:,} tasks,"
        f" {found.requests:,} requests, {found.memory >> 20} MiB a worker"
    )
    print(
        f"  encoding {found.encode_seconds:,.0f} s + transfer {found.transfer_seconds:,.0f} s of all workers"
        f" = {(found.encode_seconds + found.transfer_seconds) / given.workers / 3600:.3f} h each; "
        f"{found.hours:.3f} h from begin to end, {found.busy:.1%} busy"
    )


if __name__ == "__main__":
    main()
