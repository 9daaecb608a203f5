"""Tokens a second with drafts beside those without, by turns, on the same file in one run.

    python -m benchmarks.speculation MODEL.gguf DRAFT.gguf -f TEXT [--tokens 128] [--threads 2] [--rounds 3] [--temp 0]

Without DRAFT a Q2_K of the model drafts. Two prompts: the text's beginning, which the model goes on with; and the same
passage twice with its beginning once more, which it copies. The first table says what a pass of several tokens costs
beside one of one token. "predicted" is tokens a cycle over what a cycle costs: a pass of as many tokens as were
checked, and a draft's passes of one token. Loading and compiling are not counted; rounds take turns, the best of each
counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import gguftools
from runtime.generation import Generation
from runtime.model import Model
from runtime.sampling.parameters import Sampling
from runtime.speculation.parameters import Drafting

PASSAGE, BEGUN = 160, 24  # tokens
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17)


def pass_seconds(model: Model, ids: list[int], rounds: int) -> dict[int, float]:
    """What passes of so many tokens take, behind a passage."""
    cache, best = model.new_cache(), dict.fromkeys(WIDTHS, float("inf"))
    model.forward(ids[:PASSAGE], cache)
    for _ in range(rounds + 1):
        for width in WIDTHS:
            cache.truncate(PASSAGE)
            start = time.perf_counter()
            model.forward(ids[:width], cache)
            best[width] = min(best[width], time.perf_counter() - start)
    return best


def spoken(model: gguftools.Model, prompt: list[int], options: argparse.Namespace, **how: Any) -> Generation:
    """A text to its end."""
    sampling = Sampling(temperature=options.temp, ignore_eos=True, seed=1)
    generation = model.generate(prompt, sampling, n=options.tokens, threads=options.threads, **how)
    for _ in generation:
        pass
    return generation


def nearest(costs: dict[int, float], width: float) -> float:
    """A pass of a width between those that were measured."""
    below = max(each for each in costs if each <= width)
    above = min((each for each in costs if each >= width), default=below)
    share = (width - below) / (above - below) if above > below else 0.0
    return costs[below] + share * (costs[above] - costs[below])


def compare(
    model: gguftools.Model, prompt: list[int], ways: dict[str, dict[str, Any]], costs: dict[int, float], draft: float,
    options: argparse.Namespace,
) -> None:  # fmt: skip
    best: dict[str, Generation] = {}
    for _ in range(options.rounds):
        for name, how in {"plain": {}, **ways}.items():
            found = spoken(model, prompt, options, **how)
            if name not in best or found.decode_speed > best[name].decode_speed:
                best[name] = found
    plain = best["plain"]
    print(f"{'draft':14} {'tokens/s':>9} {'beside':>7} {'predicted':>9} {'accepted':>9} {'a cycle':>8}  same text")
    print(f"{'none':14} {plain.decode_speed:9.1f} {1:7.2f}")
    for name in ways:
        one = best[name]
        counts = one.speculated
        assert counts is not None
        checked = counts.drafted / counts.cycles
        cost = nearest(costs, 1 + checked) / costs[1] + (0 if name == "lookup" else checked * draft / costs[1])
        print(f"{name:14} {one.decode_speed:9.1f} {one.decode_speed / plain.decode_speed:7.2f} "
              f"{counts.tokens_per_cycle / cost:9.2f} {counts.accepted / max(1, counts.drafted):9.2f} "
              f"{counts.tokens_per_cycle:8.2f}  {one.tokens == plain.tokens}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("-f", "--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temp", type=float, default=0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = gguftools.open(options.model)
        if options.draft is None:
            options.draft = Path(folder) / "draft.gguf"
            model.save(options.draft, "Q2_K", allow_requantize=True)
        draft = gguftools.open(options.draft)
        ids = model.tokenizer.encode(options.file.read_text(encoding="utf-8")[:8192])[: 2 * PASSAGE]
        costs = pass_seconds(model.running(options.threads), ids, options.rounds)
        small = pass_seconds(draft.running(options.threads), ids, options.rounds)[1]
        print("a pass of tokens, beside one of one:", ", ".join(f"{k}: {v / costs[1]:.2f}" for k, v in costs.items()))
        print(f"a token of the draft: {small / costs[1]:.2f}\n")
        ways: dict[str, dict[str, Any]] = {
            f"model, {most}": {"draft": draft, "drafting": Drafting(most)} for most in (1, 2, 3, 4)
        }
        ways["lookup"] = {"draft": "lookup"}
        print("going on with a text")
        compare(model, ids[:PASSAGE], ways, costs, small, options)
        print("\ncopying a text")
        passage = ids[1 : PASSAGE + 1]
        compare(model, ids[:1] + passage * 2 + passage[:BEGUN], ways, costs, small, options)


if __name__ == "__main__":
    main()
