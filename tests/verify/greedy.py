"""Record greedy continuations of the zoo's models by transformers: python -m tests.verify.greedy ENTRY… > FILE.

Needs torch and transformers (extra `verify`). Each step runs the whole text, without a cache. margin: the smallest
lead of a token that was chosen.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests import zoo_build
from tests.zoo import ZOO

PROMPT, TOKENS = 12, 24


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / name
            zoo_build.build(ZOO, name, checkpoint)
            model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        prompt = np.load(ZOO / name / "logits.npz")["ids0"][:PROMPT].tolist()
        ids, margin = list(prompt), np.inf
        with torch.no_grad():
            for _ in range(TOKENS):
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                first, second = logits.topk(2).values.tolist()
                margin = min(margin, first - second)
                ids.append(int(logits.argmax()))
        found = {"entry": name, "prompt_ids": prompt, "ids": ids[PROMPT:], "margin": margin}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
