"""Whether a converted model computes what the original does: logits of random prompts beside those of transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike
from quants.errors import ModelError, OptionError

from ..files.naming import is_remote
from ..writing.report import LogitCheck, OutputReport

if TYPE_CHECKING:
    from runtime.model import Model

PROMPT = 32  # tokens
SEED = 0

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Prompt:
    """Random token ids; decoder_tokens are those of a model with two sides, whose logits are compared then."""

    tokens: list[int]
    decoder_tokens: list[int]


def require_checkable(source: PathLike, changed: bool = False) -> None:
    """Raise OptionError where a conversion of `source` could not be checked afterwards.

    changed: the conversion makes another model of it.
    """
    if importlib.util.find_spec("torch") is None:
        raise OptionError(
            "checking compares with transformers on torch, which is not installed",
            hint='pip install "gguftools[verify]", or leave out --check-logits',
        )
    if is_remote(source):
        raise OptionError(
            f"checking needs the model in a folder; {source} is read without a copy",
            hint="download it, and convert the folder",
        )
    if changed:
        raise OptionError("adapters and predictors make another model than the one to compare with")


def check_output(output: OutputReport, folder: PathLike, prompts: int) -> LogitCheck:
    """Compare a converted file with the checkpoint it comes from, on so many random prompts.

    Needs torch, and memory for the model in float32. Raises ModelError where transformers can't load the checkpoint
    without running code from it, or the runtime can't run the file.
    """
    from ..model import load

    model = load(output.file)
    asked = [prompt for prompt, _ in zip(_prompts(model, Path(folder)), range(prompts), strict=False)]
    truth = _truth(model, Path(folder), asked)
    differences = []
    for prompt, wanted in zip(asked, truth, strict=True):
        found = model.logits(prompt.tokens, prompt.decoder_tokens)
        if found.shape != wanted.shape:
            raise ModelError(f"{output.file} gives logits {found.shape}, transformers {wanted.shape}")
        differences.append(float(np.abs(found - wanted).max() / wanted.std()))
    exact = all(tensor.format in (tensor.source, "F32") for tensor in output.tensors)
    tokens = sum(len(prompt.tokens) for prompt in asked)
    return LogitCheck(len(asked), tokens, float(np.max(differences)), exact)


def _prompts(model: Model, folder: Path) -> Iterator[Prompt]:
    """Endless prompts. Without the padding token, which some models count no position for."""
    from archs.small_files import read_json_object

    config = read_json_object(folder / "config.json")
    ids = np.setdiff1d(np.arange(model.vocabulary_size), config.get("pad_token_id") or 0)
    length = min(PROMPT, int(model.metadata.get(f"{model.architecture.name}.context_length", PROMPT)))
    rng = np.random.default_rng(SEED)
    while True:
        tokens, following = rng.choice(ids, (2, length)).tolist()
        start = config.get("decoder_start_token_id") or 0
        yield Prompt(tokens, [] if model.encoder_decoder is None else [start, *following[1:]])


def _truth(model: Model, folder: Path, prompts: Sequence[Prompt]) -> list[Floats]:
    """The original's logits (tokens, vocabulary) of each prompt; an encoder's last hidden states."""
    import torch

    with _quiet_transformers():
        original = _original(model, folder)
        found = []
        with torch.no_grad():
            for prompt in prompts:
                inputs = {"input_ids": torch.tensor([prompt.tokens])}
                if prompt.decoder_tokens:
                    inputs["decoder_input_ids"] = torch.tensor([prompt.decoder_tokens])
                result = original(**inputs)
                values = result.logits if "logits" in result else result.last_hidden_state
                found.append(values[0].float().numpy())
    return found


def _original(model: Model, folder: Path) -> Callable[..., Any]:
    """The checkpoint as transformers runs it, in float32."""
    import torch
    import transformers

    if model.encoder_decoder is not None:
        kind = transformers.AutoModelForSeq2SeqLM
    elif model.architecture.block.causal:
        kind = transformers.AutoModelForCausalLM
    else:
        kind = transformers.AutoModel
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        loaded = kind.from_pretrained(
            str(folder), config=config, torch_dtype=torch.float32, local_files_only=True, trust_remote_code=False,
            attn_implementation="eager" if model.architecture.eager_attention else "sdpa",
        )  # fmt: skip
    except Exception as error:  # whatever a model class raises on a checkpoint that it does not like
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"transformers cannot load {folder}: {reason}", "convert it without --check-logits") from error
    evaluated: Callable[..., Any] = loaded.eval()
    return evaluated


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without its warnings and bars: what it says is not about our file."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
