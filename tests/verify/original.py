"""What transformers makes of a config: a checkpoint with random weights, and the logits that it computes with it.

Weights depend on their names and shapes alone (as in tests/data/families), so it can be made again without torch.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file

from archs.hparams.config_keys import THINKER
from tests.archs import checkpoints

from . import attention
from .options import WRITTEN_OTHERWISE, Base, Config

# One line of spec.json in tests/data/families: name, stored type, shape, mean, standard deviation.
Row = tuple[str, str, list[int], Any, float]


COMPUTED = ("slope_rate", "_decay")  # stored, though they follow from the config (MiniMax)


class RefusedError(Exception):
    """transformers makes no model of this config, or does not read what it wrote itself."""


def write_checkpoint(name: str, base: Base, config: Config, folder: Path) -> list[Row]:
    """The base's tokenizer, config.json, and the weights that the model class has for this config, which are returned.

    name: what the weights are made from, and whether config.json is spelled as published ones are or as transformers
    saves it. Raises RefusedError.
    """
    if THINKER in config:
        return _with_thinker(name, base, config, folder)
    as_saved = Random(name).random() < 0.5
    try:
        full = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
        model = model_class(base)._from_config(full, dtype=torch.float32)
        model.save_pretrained(folder)
    except Exception as error:  # whatever a model class raises on a config that it does not like
        raise RefusedError(f"{type(error).__name__}: {one_line(error)}") from error
    rows = [_row(*each) for each in sorted(load_file(folder / "model.safetensors").items())]
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in base.tokenizer:
        shutil.copyfile(file, folder / file.name)
    checkpoints.write_tensors(folder / "model.safetensors", name, rows)
    if not as_saved:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return rows


def _with_thinker(name: str, base: Base, config: Config, folder: Path) -> list[Row]:
    """A model that speaks. The part that reads and writes text is a class by itself, beside the folder."""
    hf_class = base.hf_class.replace("For", "ThinkerFor")
    inside = write_checkpoint(name, replace(base, hf_class=hf_class), config[THINKER], thinker(folder))
    folder.mkdir()
    for file in base.tokenizer:
        shutil.copyfile(file, folder / file.name)
    checkpoints.write_tensors(folder / "model.safetensors", name, inside, {"": "thinker."})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return inside


def thinker(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-thinker")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def model_class(base: Base) -> Any:
    """By its name, of which transformers writes some otherwise than published configs do."""
    return getattr(transformers, WRITTEN_OTHERWISE.get(base.hf_class, base.hf_class))


def _row(name: str, values: torch.Tensor) -> Row:
    """Matrices about zero; vectors (norms of one or zero, biases, rates) about what the class begins with; whole
    numbers below 2^40 as they are, but for tables of experts, of which there are four at least.
    """
    if name.endswith(".tid2eid"):
        return name, "I64", list(values.shape), 2.0, 0.55
    if not values.is_floating_point():
        return name, "I64", list(values.shape), (values % 2**40).flatten().tolist(), 0.0
    if name.endswith(COMPUTED):
        return name, "F32", list(values.shape), values.flatten().tolist(), 0.0
    mean = float(f"{values.double().mean():.2g}") if values.ndim < 2 or name.endswith("A_log") else 0.0
    std = 0.1 if values.ndim > 1 else 0.15 if values.numel() > 1 else abs(mean) * 0.15
    return name, "F32", list(values.shape), mean, std


def load(base: Base, folder: Path) -> Any:
    """The checkpoint as transformers reads it, in float32. Raises RefusedError, also for lost weights."""
    if thinker(folder).is_dir():
        folder, base = thinker(folder), replace(base, hf_class=base.hf_class.replace("For", "ThinkerFor"))
    try:
        model, said = model_class(base).from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention(folder), output_loading_info=True
        )
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {one_line(error)}") from error
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if said[key]:
            raise RefusedError(f"{key} of its own checkpoint: {sorted(said[key])[:2]}")
    return model.eval()


def truth(base: Base, folder: Path, ids: Sequence[int], decoder_ids: Sequence[int]) -> NDArray[np.float64]:
    """The checkpoint's logits of a text (tokens, vocabulary), or of what follows it where there is a decoder beside the
    encoder; of encoders the last hidden states. Raises RefusedError.
    """
    model = load(base, folder)
    if base.hf_class.startswith("GraniteSpeech"):  # which transformers 4 divided as Granite's
        return logits(model, ids, decoder_ids) / model.config.text_config.logits_scaling
    if reads(base) == "states" and (prefix := model.base_model_prefix) and hasattr(model, prefix):
        model = getattr(model, prefix)
    if base.hf_class == "HYV4ForCausalLM":
        with hy_v4_as_published(model):
            return logits(model, ids, decoder_ids)
    return logits(model, ids, decoder_ids)


@contextlib.contextmanager
def hy_v4_as_published(model: Any) -> Iterator[None]:
    """Values that are neighbours are rotated, and latents normed with the config's epsilon, as llama.cpp does."""
    from transformers.models.hy_v4 import modeling_hy_v4 as code

    def rotated(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
        cos, sin = (x[..., : x.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for x in (cos, sin))
        pairs = (torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) for x in (q, k))
        return tuple(x * cos + other * sin for x, other in zip((q, k), pairs, strict=True))  # type: ignore[return-value]

    before, code.apply_rotary_pos_emb = code.apply_rotary_pos_emb, rotated
    for name, part in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            part.variance_epsilon = model.config.rms_norm_eps
    try:
        yield
    finally:
        code.apply_rotary_pos_emb = before


def reads(base: Base) -> Literal["logits", "states", "scores"]:
    """What is compared of a class: a model without a head, or with one that files don't have, ends in states."""
    if base.hf_class.endswith("ForSequenceClassification"):
        return "scores"
    return "states" if base.hf_class.endswith(("Model", "ForMaskedLM")) else "logits"


def without_cache(model: Any) -> dict[str, bool]:
    """What models are told whose layers all keep states: transformers asks its cache for positions of attention."""
    kinds = {*(getattr(model.config.get_text_config(), "layer_types", None) or ("full_attention",))}
    return {"use_cache": False} if kinds <= {"linear_attention", "conv", "mamba", "mlp", "moe"} else {}


def logits(model: Any, ids: Sequence[int], decoder_ids: Sequence[int]) -> NDArray[np.float64]:
    """As `truth`, of a loaded model."""
    inputs = {"input_ids": torch.tensor([list(ids)])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([list(decoder_ids)])
    try:
        with torch.inference_mode():
            found = model(**inputs, **without_cache(model))
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {one_line(error)}") from error
    values = found.logits if "logits" in found else found.last_hidden_state
    values = values if values.ndim == 3 else values[:, None]
    result: NDArray[np.float64] = values[0].double().numpy()
    if not np.isfinite(result).all() or result.std() == 0:
        raise RefusedError("logits that are no numbers")
    return result
