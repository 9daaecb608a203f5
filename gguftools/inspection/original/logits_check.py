"""Compare the logits of a converted model on random prompts with those of transformers."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archs.small_files import read_json_object
from quants.arguments import PathLike
from quants.errors import ModelError, OptionError
from runtime.arrays import Floats

from ...io.naming import is_remote
from ...io.stores.path import first_line
from ...models.diffusion_sources import is_diffusion
from ...models.model import load
from ...writing.report import LogitReport, OutputReport

if TYPE_CHECKING:
    from runtime.model import RunningModel

PROMPT = 32  # tokens
SEED = 0

Progress = Callable[[int, int, str], None]
Prompt = tuple[list[int], list[int]]  # token ids, and those of the decoder of an encoder-decoder model


def require_checkable(source: PathLike, changed: bool = False) -> None:
    """Raise OptionError where a conversion of `source`, `changed` or not, could not be checked afterwards."""
    if importlib.util.find_spec("torch") is None:
        hint = 'pip install "gguftools[verify]", or leave out `check_logits`'
        raise OptionError("checking compares with transformers on torch, which is not installed", hint)
    if is_remote(source):
        problem = f"checking needs the model in a folder; {source} is read without a copy"
        raise OptionError(problem, "download it, and convert the folder")
    if is_diffusion(source):
        raise OptionError(f"{source} is an image or video model, which has no logits", "leave out `check_logits`")
    if changed:
        raise OptionError("adapters and predictors make another model than the one to compare with")


def check_output(output: OutputReport, folder: PathLike, prompts: int, progress: Progress | None = None) -> LogitReport:
    """Compare a converted file with the checkpoint it comes from, on so many random prompts.

    Needs torch, and memory for the model in float32. progress(prompts run, of how many, what runs them): each prompt
    counts twice. Raises ModelError where transformers can't load the checkpoint without running code from it, or the
    runtime can't run the file.
    """
    report = progress or (lambda done, total, what: None)
    model = load(output.file)
    asked = list(islice(_prompts(model, Path(folder)), prompts))
    differences = []
    truth = _truth(model, Path(folder), asked, report)
    for i, (prompt, wanted) in enumerate(zip(asked, truth, strict=True)):
        report(len(asked) + i, 2 * len(asked), "the converted file")
        logits = model.logits(*prompt)
        if logits.shape != wanted.shape:
            raise ModelError(f"{output.file} gives logits {logits.shape}, transformers {wanted.shape}")
        differences.append(float(np.abs(logits - wanted).max() / wanted.std()))
    report(2 * len(asked), 2 * len(asked), "")
    exact = all(tensor.format in (tensor.source, "F32") for tensor in output.tensors)
    tokens = sum(len(tokens) for tokens, _ in asked)
    return LogitReport(len(asked), tokens, float(np.max(differences)), exact)


def _prompts(model: "RunningModel", folder: Path) -> Iterator[Prompt]:
    """Yield random prompts without end, and without the padding token, which some models count no position for."""
    config = read_json_object(folder / "config.json")
    ids = np.setdiff1d(np.arange(model.vocabulary_size), config.get("pad_token_id") or 0)
    length = min(PROMPT, int(model.metadata.get(f"{model.architecture.name}.context_length", PROMPT)))
    rng = np.random.default_rng(SEED)
    while True:
        tokens, following = rng.choice(ids, (2, length)).tolist()
        start = config.get("decoder_start_token_id") or 0
        yield tokens, [] if model.encoder_decoder is None else [start, *following[1:]]


def _truth(model: "RunningModel", folder: Path, prompts: Sequence[Prompt], progress: Progress) -> list[Floats]:
    """Return the original's logits (tokens, vocabulary) of each prompt; an encoder's last hidden states."""
    import torch

    with quiet_transformers():
        progress(0, 2 * len(prompts), "transformers")
        original = loaded_original(model, folder)
        logits = []
        with torch.no_grad():
            for i, ids in enumerate(prompts):
                progress(i, 2 * len(prompts), "transformers")
                inputs = zip(("input_ids", "decoder_input_ids"), ids, strict=True)
                result = original(**{name: torch.tensor([each]) for name, each in inputs if each})
                values = result.logits if "logits" in result else result.last_hidden_state
                logits.append(values[0].float().numpy())
    return logits


def loaded_original(
    model: "RunningModel", folder: Path, hint: str = "convert it without `check_logits`"
) -> Callable[..., Any]:
    """Return the checkpoint as transformers runs it, in float32. Raises ModelError, with this hint, where it cannot."""
    import torch
    import transformers

    auto_class = transformers.AutoModelForCausalLM if model.architecture.block.causal else transformers.AutoModel
    auto_class = auto_class if model.encoder_decoder is None else transformers.AutoModelForSeq2SeqLM
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        loaded: Callable[..., Any] = auto_class.from_pretrained(
            str(folder),
            config=config,
            torch_dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="eager" if model.architecture.eager_attention else "sdpa",
        ).eval()
    except Exception as error:  # any exception of a model class that rejects a checkpoint
        message = f"transformers cannot load {folder}: {first_line(error)}"
        raise ModelError(message, hint) from error
    return loaded


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings and progress bars, which are not about our file."""
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
