"""Check files of PowerInfer: whether the predictor skips neurons, and only those that matter little."""

import numpy as np

from runtime.generation import prompt_ids
from runtime.model import Model as RunningModel

from ...models.model import Model
from ...models.running import running_model
from .result import Check, judged, skipped
from .texts import PASSAGES, passage

SPARSITY = "predictor"
PASSAGE = 64  # tokens
MIN_AGREEMENT = 0.5


def check_sparsity(model: Model, threads: int | None) -> Check:
    """Check that the file runs with its predictor, skips neurons, and mostly predicts the same tokens as without."""
    if "blk.0.fc1.weight" not in model.tensors:
        return skipped(SPARSITY, "the file has no predictor")
    sparse = RunningModel(model.metadata, model.tensors, threads=threads)
    counted, same = sparse.use_predictor(), list[bool]()
    for name in PASSAGES:
        ids = prompt_ids(model.tokenizer, passage(name)[: 8 * PASSAGE])[:PASSAGE]
        pairs = zip(running_model(model, threads).logits(ids), sparse.logits(ids), strict=True)
        same += [bool(dense.argmax() == other.argmax()) for dense, other in pairs]
    agreement = float(np.mean(same))
    seen = f"{counted.skipped:.1%} of the neurons are left out; the same top token {agreement:.1%}"
    faults = []
    if counted.skipped == 0:
        faults.append(f"the predictor leaves no neuron out, of {counted.neurons:,}")
    if agreement < MIN_AGREEMENT:
        faults.append(f"{seen}; the predictor leaves out what matters")
    return judged(SPARSITY, faults, seen, skipped=counted.skipped, same_top=agreement)
