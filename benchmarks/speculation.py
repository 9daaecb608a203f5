"""Tokens a second with drafts beside those without, by turns, on the same file in one run.

    python -m benchmarks.speculation MODEL.gguf DRAFT.gguf -f TEXT [--tokens 128] [--threads 2] [--rounds 3] [--temp 0]
                                    [--processor-time]

Without DRAFT a Q2_K of the model drafts. Two prompts: the text's beginning, which the model goes on with; and the same
passage twice with its beginning once more, which it copies. In front of each table: what a pass of several tokens costs
beside one of one token behind that prompt, and what the draft's cost (`draft_costs`). "predicted" is tokens a cycle
over what a cycle costs with these. First of all: passes whose states a draft reads. Loading, compiling and reading the
prompt are not counted. Machines drift: each text with drafts stands beside a plain one just before it, costs are timed
anew in each round, and the median of all rounds counts. --processor-time counts that of one thread, where other
programs run beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gguftools
from gguftools.lab.drafts import costs as draft_costs
from gguftools.lab.drafts.costs import timed_costs
from gguftools.lab.drafts.figures import Cycles, speedup
from runtime import generation
from runtime.generation import Generation
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.speculation.decoding import Counts
from runtime.speculation.parameters import MAX_BY_LOOKUP, Drafting

PASSAGE, BEGUN = 160, 24  # tokens


def spoken(model: gguftools.Model, prompt: list[int], options: argparse.Namespace, **how: Any) -> Generation:
    """A text to its end."""
    sampling = Sampling(temperature=options.temp, ignore_eos=True, seed=1)
    generation = model.generate(prompt, sampling, max_tokens=options.tokens, threads=options.threads, **how)
    for _ in generation:
        pass
    return generation


def cycles_of(counts: Counts) -> Cycles:
    """What was counted, as shares of cycles."""
    tried = np.array([counts.cycles, *counts.drafted_per_position, 0])
    drafted: NDArray[np.float64] = (tried[:-1] - tried[1:]) / counts.cycles
    whole = counts.accepted_per_position[-1] / counts.cycles
    return Cycles(len(drafted) - 1, counts.tokens_per_cycle, None, [], drafted, whole)


def passes_with_states(net: RunningModel, prompt: list[int]) -> None:
    """Passes whose states an EAGLE-3 draft reads: compiled, and by operations that Python calls."""
    count, cache = len(net.network.layers), net.new_cache()
    layers = 2, count // 2, count - 3
    net.forward(prompt, cache)
    ways: dict[str, Callable[[list[int]], Any]] = {
        "compiled": lambda ids: net.forward_with_states(ids, layers, cache),
        "called": lambda ids: net.forward_with_inputs(ids, layers, cache)[0].float32(),
    }
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in ways for size in (2, 4, 8)}
    for turn in range(10):
        for (name, size), found in seconds.items():
            start = time.perf_counter()
            ways[name](prompt[:size])
            if turn:  # the first compiles
                found.append(time.perf_counter() - start)
            cache.truncate(len(prompt))
    print(
        "passes with states, ms:",
        ", ".join(f"{size} tokens {name} {1e3 * median(found):.1f}" for (name, size), found in seconds.items()),
    )


def compare(model: gguftools.Model, draft: gguftools.Model, prompt: list[int], options: argparse.Namespace) -> None:
    ways: dict[str, dict[str, Any]] = {f"model, {k}": {"draft": draft, "drafting": Drafting(k)} for k in (1, 2, 3, 4)}
    ways["lookup"] = {"draft": "lookup"}
    shares: dict[str, tuple[float, float]] = {}  # of what was drafted, what stood; tokens a cycle
    nets = [gguftools.load(each, threads=options.threads) for each in (model, draft)]
    timed, found = [], {name: list[tuple[float, float, float, bool]]() for name in ways}
    for _ in range(options.rounds):
        alone, (costs,) = timed_costs(nets[0], nets[1:], prompt, MAX_BY_LOOKUP, len(prompt))
        timed.append((alone, costs))
        for name, how in ways.items():
            plain, one = spoken(model, prompt, options), spoken(model, prompt, options, **how)
            counts = one.speculated
            assert counts is not None
            predicted = speedup(cycles_of(counts), alone if name == "lookup" else costs)
            speeds = one.decode_speed, one.decode_speed / plain.decode_speed
            found[name].append((*speeds, predicted, one.tokens == plain.tokens))
            shares[name] = counts.accepted / max(1, counts.drafted), counts.tokens_per_cycle
    verify = np.median([alone.verify for alone, _ in timed], axis=0)
    behind = np.median([costs.verify for _, costs in timed], axis=0)
    one_token, two = np.median([(costs.draft, costs.last) for _, costs in timed], axis=0)
    print("a pass of tokens:", ", ".join(f"{k}: {verify[k - 1]:.2f}" for k in (1, 2, 4, 8, 9, 16)), end="")
    print(
        f"; a token of the draft {one_token:.2f}, of two {two:.2f} more; after it a pass of",
        ", ".join(f"{k}: {behind[k - 1]:.2f}" for k in (2, 4, 8)),
    )
    print(f"{'draft':14} {'tokens/s':>9} {'beside':>7} {'predicted':>9} {'accepted':>9} {'a cycle':>8}  same text")
    for name, rounds in found.items():
        speed, beside, predicted = np.median([each[:3] for each in rounds], axis=0)
        accepted, a_cycle = shares[name]
        print(
            f"{name:14} {speed:9.1f} {beside:7.2f} {predicted:9.2f} {accepted:9.2f} {a_cycle:8.2f}  "
            f"{all(each[3] for each in rounds)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("-f", "--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        options.threads = 1
        for module in (generation, draft_costs, sys.modules[__name__]):
            module.time = SimpleNamespace(perf_counter=time.thread_time)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        model = gguftools.open(options.model)
        if options.draft is None:
            options.draft = Path(folder) / "draft.gguf"
            model.save(options.draft, "Q2_K", allow_requantize=True)
        draft = gguftools.open(options.draft)
        ids = model.tokenizer.encode(options.file.read_text(encoding="utf-8")[:8192])[: 2 * PASSAGE]
        passes_with_states(gguftools.load(model, threads=options.threads), ids[:PASSAGE])
        print("\ngoing on with a text")
        compare(model, draft, ids[:PASSAGE], options)
        print("\ncopying a text")
        passage = ids[1 : PASSAGE + 1]
        compare(model, draft, ids[:1] + passage * 2 + passage[:BEGUN], options)


if __name__ == "__main__":
    main()
