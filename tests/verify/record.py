"""Record what transformers computes, for tests that run without torch.

    python -m tests.verify.record --count 300 --seed 7 tests/data/options.jsonl.gz

One line a case: its config, its tensors as in spec.json of tests/data/families (weights are made from the case's name
and theirs), and the logits of some positions and tokens of the text that `forward.prompt` gives for its name.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from . import original
from .forward import Case, be_quiet, compare, prompt
from .options import Base, Config, cases

POSITIONS, TOKENS = 5, 24


def record(name: str, base: Base, config: Config) -> tuple[Case, dict[str, Any]]:
    """The case, and what the line says where transformers and we took it."""
    ids, decoder_ids = prompt(name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = original.write_checkpoint(name, base, config, Path(folder, "checkpoint"))
            wanted = original.truth(base, Path(folder, "checkpoint"), ids, decoder_ids)
        except original.RefusedError as error:
            return Case(name, "refused by transformers", str(error)), {}
        config = json.loads(Path(folder, "checkpoint", "config.json").read_text(encoding="utf-8"))
        case = compare(name, base, Path(folder, "checkpoint"), Path(folder, "f32.gguf"), wanted)
    random = np.random.default_rng(list(name.encode()))
    last = len(wanted) - 1
    positions = [*np.sort(random.choice(last, POSITIONS - 1, replace=False)).tolist(), last]
    tokens = np.sort(random.choice(wanted.shape[1], min(TOKENS, wanted.shape[1]), replace=False)).tolist()
    logits = [[float(f"{value:.7g}") for value in row] for row in wanted[np.ix_(positions, tokens)].tolist()]
    return case, {
        "name": name,
        "config": config,
        "tensors": rows,
        "ids": ids,
        "decoder_ids": decoder_ids,
        "positions": positions,
        "tokens": tokens,
        "std": float(f"{wanted.std():.7g}"),
        "logits": logits,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("file", type=Path)
    asked = parser.parse_args(arguments)
    be_quiet()
    warnings.simplefilter("ignore")
    lines = []
    for name, base, config in cases(10 * asked.count, asked.seed):
        case, line = record(name, base, config)
        if case.outcome in ("equal", "near"):
            lines.append(json.dumps(line))
        elif not case.outcome.startswith("refused"):
            print(f"{name}: {case.outcome}, {case.said}")
        if len(lines) == asked.count:
            break
    with asked.file.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
