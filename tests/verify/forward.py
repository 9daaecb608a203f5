"""Random options of every family: converted, run, and compared with what transformers computes.

    python -m tests.verify.forward --count 1000 --seed 1 [--only BASE]

Texts have 9 to 300 tokens, and run at the default precision and exactly. A case goes wrong by a difference of more
than a thousandth of the logits' standard deviation, by an expert or a key that the default precision chooses otherwise,
or by an error of ours that is no refusal in one line; it is a tie where nothing differs once keys of equal scores are
chosen as torch chooses them. With --large all products are rounded that may be, as those of
larger models are. Needs the extra `verify`.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers

import gguftools
from quants.errors import GgufToolsError
from runtime.evaluation.pooling import scores
from runtime.model import RunningModel
from runtime.products import integer_product
from tests.choices import flipped, recorded
from tests.zoo import CLOSE, TOLERANCE

from . import classes, original
from .options import SPECIAL, TOKENS, Base, Config, cases

PIECES = (5, 1, 12, 1)  # tokens read together, the rest in one
LENGTHS = (9, 300)  # of texts, from … to


@dataclass(frozen=True)
class Case:
    """What became of a config: "equal", "near", "tie", "wrong", "crashed", "refused by us", "refused by transformers".

    once, pieces: the largest difference at the default precision, of the text at once and piece by piece; exact: of
    both in exact products. flips: tokens with other experts or keys than in exact products.
    """

    name: str
    outcome: str
    said: str = ""
    once: float = 0.0
    pieces: float = 0.0
    exact: float = 0.0
    flips: int = 0
    kind: str = ""
    tokens: int = TOKENS


def examine(name: str, base: Base, config: Config, folder: Path) -> Case:
    try:
        original.write_checkpoint(name, base, config, folder / "checkpoint")
        tokens, wanted = _truth(name, base, folder / "checkpoint")
    except original.RefusedError as error:
        return Case(name, "refused by transformers", str(error))
    return compare(name, base, folder / "checkpoint", folder / "f32.gguf", wanted, tokens)


def _truth(name: str, base: Base, checkpoint: Path) -> tuple[int, Any]:
    """Tokens of the case's text, and what transformers makes of it. Raises RefusedError."""
    drawn = Random(f"{name} tokens").randint(*LENGTHS)
    if drawn > TOKENS:  # of learnt positions there are fewer in some
        try:
            return drawn, original.truth(base, checkpoint, *prompt(name, drawn))
        except original.RefusedError:
            drawn = TOKENS
    return drawn, original.truth(base, checkpoint, *prompt(name, drawn))


def compare(name: str, base: Base, checkpoint: Path, file: Path, wanted: Any, tokens: int = TOKENS) -> Case:
    """Convert the checkpoint and run it on the case's text, whose logits are wanted."""
    try:
        gguftools.convert(checkpoint, file, "f32")
        model, exact, what = gguftools.load(file), gguftools.load(file), original.reads(base)
        exact.precision = "exact"
        with recorded() as mine:  # choices of texts at once; one of compiled operations shows in its logits
            differences(model, *prompt(name, tokens), wanted, what, whole=True)
        with recorded() as theirs:
            differences(exact, *prompt(name, tokens), wanted, what, whole=True)
        once, pieces = differences(model, *prompt(name, tokens), wanted, what)
        exactly = max(differences(exact, *prompt(name, tokens), wanted, what))
    except GgufToolsError as error:
        return Case(name, "refused by us", str(error))
    except Exception:
        return Case(name, "crashed", traceback.format_exc(limit=-3))
    worst, flips = max(once, pieces, exactly), flipped(mine, theirs)
    outcome = "equal" if worst <= CLOSE else "near" if worst <= TOLERANCE else "wrong"
    outcome = "wrong" if flips else outcome
    said = ""
    if exactly > TOLERANCE:
        with ties_as_torch() as ties:
            others = [differences(each, *prompt(name, tokens), wanted, what, whole=True)[0] for each in (model, exact)]
        if ties and max(others) <= TOLERANCE:
            outcome, said = "tie", f"{'; '.join(dict.fromkeys(ties))}; then {max(others):.1e}"
    return Case(name, outcome, said, once, pieces, exactly, flips, model.architecture.name, tokens)


@contextmanager
def ties_as_torch() -> Iterator[list[str]]:
    """Choose keys by torch.topk, whose order of equal scores nothing defines. The list names those chosen otherwise."""
    partition, ties = np.argpartition, list[str]()

    def best(negative: Any, at: int, axis: int = -1) -> Any:
        found = partition(negative, at, axis=axis)
        if negative.ndim != 2:
            return found
        chosen = torch.topk(torch.from_numpy(-negative), at + 1, dim=1).indices.numpy()
        ours, theirs = (np.sort(np.take_along_axis(-negative, each, 1)) for each in (found[:, : at + 1], chosen))
        others = (np.sort(found[:, : at + 1]) != np.sort(chosen)).any(axis=1) & np.isfinite(ours[:, 0])
        for row in np.flatnonzero(others):
            ties.append(f"keys of token {row} tie at {ours[row, 0]:.3g}, {ours[row, 0] - theirs[row, 0]:.1e} apart")
        return chosen

    with mock.patch.object(np, "argpartition", best):
        yield ties


def prompt(name: str, tokens: int = TOKENS) -> tuple[list[int], list[int]]:
    """A text, and what an encoder's text is followed by."""
    random = np.random.default_rng(list(name.encode()))
    ids = random.integers(SPECIAL, 250, (2, tokens))
    return ids[0].tolist(), [0, *ids[1, :16].tolist()]


def differences(
    model: RunningModel, ids: list[int], decoder_ids: list[int], wanted: Any, what: str = "logits", whole: bool = False
) -> tuple[float, float]:
    """Largest |difference| over the logits' std, at once and piece by piece (0 if whole, or if all of it matters)."""
    std = wanted.std()
    if what != "logits":
        states = model.hidden_states([ids])
        found = scores(model, states) if what == "scores" else states[0]
        return float(np.abs(found - wanted).max() / std), 0.0
    once = float(np.abs(model.logits(ids, decoder_ids) - wanted).max() / std)
    if whole or model.encoder_decoder is not None or not model.architecture.block.causal:
        return once, 0.0
    scaling = model.network.scaling
    if scaling is not None and scaling.type in ("dynamic", "longrope"):
        return once, 0.0
    cache, parts, start = model.new_cache(), [], 0
    for size in (*PIECES, len(ids)):
        parts.append(model.forward(ids[start : start + size], cache))
        start += size
    return once, float(np.abs(np.concatenate(parts) - wanted).max() / std)


def be_quiet() -> None:
    """One thread, and nothing on the screen that transformers has to say."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="cases of all bases in turn")
    parser.add_argument("--each", type=int, default=0, help="cases of each class instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name begins so; with --each: of classes like this")
    parser.add_argument("--large", action="store_true", help="round products as those of larger models are")
    asked = parser.parse_args(arguments)
    if asked.large:
        integer_product.MIN_WIDTH = integer_product.MIN_WEIGHTS = integer_product.MIN_WORK = 0
    be_quiet()
    warnings.simplefilter("ignore")
    start, of_class = time.monotonic(), dict[str, list[Case]]()
    count, way = (asked.each, classes.cases) if asked.each else (asked.count, cases)
    for name, base, config in way(count, asked.seed, asked.only):
        so_far = of_class.setdefault(base.hf_class, [])
        if asked.each and compared(so_far) == classes.wanted(base.hf_class, asked.each):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = examine(name, base, config, Path(folder))
        so_far.append(found)
        if found.outcome != "equal":
            changed = {key: value for key, value in config.items() if base.config.get(key, ...) != value}
            differ = " ".join(f"{each:.1e}" for each in (found.once, found.pieces, found.exact))
            print(f"{name}: {found.outcome} {differ} {found.flips} flips, {found.tokens} tokens {found.said}")
            print(f"    {json.dumps(changed)}", flush=True)
    every = [found for some in of_class.values() for found in some]
    for line in table(every):
        print(line)
    for hf_class, some in sorted(of_class.items()) if asked.each else ():
        print(f"{hf_class}: {counted(some)}")
    print(f"all: {counted(every)}, {time.monotonic() - start:.0f} s")
    return int(any(found.outcome in ("wrong", "crashed") for found in every))


def compared(some: list[Case]) -> int:
    return sum(not found.outcome.startswith("refused") for found in some)


def table(every: list[Case]) -> list[str]:
    """By architecture: cases, and the largest differences at the default precision and in exact products."""
    kinds: dict[str, list[Case]] = {}
    for one in every:
        if one.kind:
            kinds.setdefault(one.kind, []).append(one)
    return [
        f"{kind:20} {len(some):5} {max(max(one.once, one.pieces) for one in some):.1e} "
        f"{max(one.exact for one in some):.1e} {sum(one.flips for one in some)} flips"
        for kind, some in sorted(kinds.items())
    ]


def counted(some: list[Case]) -> str:
    """How many cases became what, and the largest difference."""
    kinds = sorted(collections.Counter(one.outcome for one in some).items())
    largest = max((max(one.once, one.pieces) for one in some), default=0.0)
    return ", ".join([f"{count} {outcome}" for outcome, count in kinds] + [f"at most {largest:.1e}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
