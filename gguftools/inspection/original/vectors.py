"""Compare the vectors of an embedding model's file with its original's."""

import numpy as np

from archs.general import pooling_type
from runtime.evaluation.pooling import AS_THEY_ARE, EUCLIDEAN, POOLINGS, Pooling, file_pooling, normalized

from ...models.model import Model
from ...models.running import running_model
from .checkpoint import Original
from .result import Check, judged, skipped

VECTORS = "vectors"
SAMPLES = ("It is a truth universally acknowledged.", "The giant panda is a bear of China.", "def f(x): return x + 1")
MIN_COSINE = 0.9  # between a text's vector and the original's
ALIKE = 1 - 1e-6  # maximum cosine of different texts' vectors


def check_vectors(model: Model, original: Original | None, threads: int | None) -> Check:
    """Check that pooling is the original's, and that vectors are finite, distinct and close to the original's."""
    name = model.architecture
    running, stated = running_model(model, threads), model.metadata.get(f"{name}.pooling_type")
    modules = None if original is None else original.modules
    if stated is None and modules is None and not running.architecture.block.hidden_states:
        return skipped(VECTORS, "the file is not an embedding model: it has no pooling type")
    faults, lines = list[str](), list[str]()
    ours = file_pooling(model.metadata)
    theirs = _pooling(original)
    if theirs is not None and ours != theirs:
        faults.append(f"{name}.pooling_type is {ours if stated is not None else 'missing'}; the original's is {theirs}")
    if modules is not None:
        module_types = [str(each.get("type", "")).rpartition(".")[2] for each in modules]
        if "Normalize" not in module_types:
            lines.append("the original does not normalize its vectors, which programs do (unless normalize is -1)")
        lines += [
            f"the original has a module {module_type}, which the file has not"
            for module_type in module_types
            if module_type == "Dense"
        ]
    way: Pooling = "mean" if ours in ("none", "rank") else ours
    embeddings = model.embed(list(SAMPLES), pooling=way, normalize=AS_THEY_ARE, threads=threads)
    vectors = normalized(embeddings.vectors, EUCLIDEAN)
    if not np.isfinite(vectors).all():
        faults.append("vectors are not finite")
    among = vectors @ vectors.T
    if (among[np.triu_indices(len(vectors), 1)] > ALIKE).any():
        faults.append("different texts have the same vector")
    seen = f"pooled by {way}: cosine between texts {among[0, 1]:.3f}"
    cosine = None
    if original is not None:
        wanted = original.model.embed(list(SAMPLES), pooling=way, threads=threads).vectors
        cosine = float((vectors * wanted).sum(axis=1).min())
        seen += f", with the original's {cosine:.5f} or more"
        if not cosine >= MIN_COSINE:
            faults.append(f"the cosine with the original's vectors is {cosine:.3f}; {MIN_COSINE} or more is expected")
    return judged(VECTORS, faults, seen, lines, pooling=ours, least_cosine=cosine)


def _pooling(original: Original | None) -> Pooling | None:
    """Return the original's pooling; None if it declares none."""
    if original is None:
        return None
    if original.folder is None:
        own = f"{original.model.architecture}.pooling_type" in original.model.metadata
        return file_pooling(original.model.metadata) if own else None
    number = pooling_type(original.folder)
    return None if number is None else POOLINGS[number]
