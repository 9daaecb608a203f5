"""Exported checkpoints as transformers loads them: the same logits, tensors and token ids as what was converted.

    python -m tests.verify.export [--count N] [--seed S] [ENTRY …]      exit code 1 where anything is wrong
    python -m tests.verify.export --each '*bias*' [--only NAME]         each option of every base by itself
    python -m tests.verify.export --classes REGEX                       a checkpoint of every such class
    python -m tests.verify.export --record …                            also keeps what is right for the usual tests

Each checkpoint of the zoo and of tests/data/families (or those named), then N checkpoints with random options: made a
file of float32, exported, loaded by the class that the exported config.json names. Nothing may be missing from its
tensors or be left over, the logits must be the model's, its tokenizer must cut texts as the checkpoint's own does, and
a conversion of the export must give the same file again. An export may be refused, by one line.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import gguftools
from gguftools.conversion.export import export
from gguftools.inspection.compare import diff
from gguftools.io.checkpoint.folder import open_checkpoint
from quants.errors import GgufToolsError
from tests import zoo, zoo_build
from tests.archs import checkpoints, exported

from . import attention
from .options import Base, Config

CLOSE = 2e-5  # of the logits' standard deviation
# What no file holds, and what transformers does not read: poolers, Chameleon's encoder of images.
NOT_IN_FILES = ("pooler.", "visual.pooler.", "model.vqmodel.")
COMPUTED = (
    "rotary_pos_emb.inv_freq",
    ".rotary_emb.inv_freq",
    "_decay",
    ".slope_rate",
)  # stored though it follows from the config
OTHERWISE = "transformers' class with"  # how truths begin that the class itself does not give
SCALED = {  # factors of the config stay in the file's weights; what nothing reads is zero
    "jais": ("lm_head.weight", "transformer.wte.weight"),
    "arwkv7": tuple(f"model.layers.0.self_attn.time_mixer.v{i}" for i in range(3)),
}
TEXTS = (
    "It is a truth universally acknowledged,\n that… 123",
    "  Hello 12345 wörld!\t\r\n def f(x): return x**2",
    "日本語 🙂 <s> </s> [CLS] <|endoftext|> don't I'LL",
    "",
    " ",
    "a",
    "▁x <unk>\n\n\n  2024-01-01",
)


@dataclass
class Found:
    """What an export turned out to be. refused: the line that says why; wrong: what is not as it was."""

    name: str
    refused: str = ""
    wrong: list[str] = field(default_factory=list)
    error: float = 0.0
    line: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"refused: {self.refused}" if self.refused else "; ".join(self.wrong) or f"{self.error:.0e}"
        return f"{self.name:24s} {said}"


def examine(name: str, folder: Path, work: Path, truth: list[tuple[dict[str, Any], Any]]) -> Found:
    """Convert the checkpoint, export the file, compare. truth: arguments of the model, and what it must give."""
    found = Found(name)
    try:
        gguftools.convert(folder, work / "first.gguf", "f32")
    except GgufToolsError as error:
        found.refused = f"already by convert: {error}"
        return found
    try:
        done = export(work / "first.gguf", work / "back")
    except GgufToolsError as error:
        found.refused = str(error)
        if "\n" in found.refused:
            found.wrong.append(f"refused in several lines: {found.refused!r}")
        return found
    if done.differing:
        found.wrong.append(f"converts to other {', '.join(done.differing)}")
    found.wrong += converts_again(work)
    found.wrong += tokenizer_differences(folder, work / "first.gguf", work / "back")
    if not is_known(work / "back"):
        found.wrong += tensor_differences(folder, work / "back")
        return found if found.wrong else recordable(found, work)
    try:
        found.error, wrong = logits_error(work / "back", truth)
        found.wrong += wrong
    except Exception as error:
        found.wrong.append(f"does not load or run: {type(error).__name__}: {str(error)[:300]}")
    if not found.error < CLOSE:
        own = own_error(work / "first.gguf", truth)
        found.wrong.append(f"logits are {found.error:.0e} off, those of our runtime {own:.0e}")
    return found if found.wrong else recordable(found, work)


def recordable(found: Found, work: Path) -> Found:
    file = gguftools.open(work / "first.gguf")
    found.line = exported.line(found.name, file.metadata, file.tensors)
    return found


def own_error(file: Path, truth: list[tuple[dict[str, Any], Any]]) -> float:
    """How far our runtime is off with the file: then it is the conversion that is wrong."""
    model = gguftools.load(file)
    return max(difference(model.logits(*given.values()), wanted) for given, wanted in truth)


def converts_again(work: Path) -> list[str]:
    try:
        gguftools.convert(work / "back", work / "second.gguf", "f32")
    except GgufToolsError as error:
        return [f"does not convert again: {error}"]
    found = diff(work / "first.gguf", work / "second.gguf")
    keys = [each.key for each in found.keys if not each.key.startswith("general.")]
    tensors = [each.name for each in found.different_tensors if each.kind != "rounded"]
    return [f"converts again otherwise: {', '.join([*keys, *tensors][:8])}"] if keys or tensors else []


def is_known(folder: Path) -> bool:
    """Whether transformers has the class; others come as code beside the weights, which nothing here runs."""
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return hasattr(transformers, config["architectures"][0])


def tensor_differences(folder: Path, back: Path) -> list[str]:
    ours = open_checkpoint(back).tensors
    theirs = {
        name: each
        for name, each in open_checkpoint(folder).tensors.items()
        if name in ours or not name.endswith(COMPUTED)
    }
    theirs = {name: each for name, each in theirs.items() if name in ours or not name.startswith("mtp.")}
    if ours.keys() != theirs.keys():
        return [f"other tensors: {sorted(ours.keys() ^ theirs.keys())[:4]}"]
    scaled = SCALED.get(folder.name, ())
    same = {name: name in scaled or equal(name, ours[name].float32(), theirs[name].float32()) for name in ours}
    return [f"other values of {name}" for name in same if not same[name]]


def equal(name: str, ours: Any, theirs: Any) -> bool:
    """Whether values are the same; logarithms, and what was added to, are to the last places."""
    rounded = name.endswith(("A_log", "norm.weight"))
    return np.allclose(ours, theirs, rtol=3e-7, atol=1e-7) if rounded else np.array_equal(ours, theirs)


def logits_error(folder: Path, truth: list[tuple[dict[str, Any], Any]]) -> tuple[float, list[str]]:
    """How far what transformers makes of the folder is off, and what is wrong with its tensors."""
    model, wrong = loaded(folder)
    return max(difference(run(model, given), wanted) for given, wanted in truth), wrong


def loaded(folder: Path) -> tuple[Any, list[str]]:
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, config["architectures"][0])
    model, report = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention(folder), output_loading_info=True
    )
    last = f"model.layers.{config.get('num_hidden_layers')}."
    wrong = []
    for what, names in report.items():
        known = sorted(name for name in map(str, names) if not name.startswith((*NOT_IN_FILES, last)))
        known = [name for name in known if not name.endswith(COMPUTED)]
        wrong += [f"{what}: {', '.join(known[:4])}"] if known else []
    return model.eval(), wrong


def run(model: Any, given: dict[str, Any]) -> Any:
    """The model's logits, a classifier's scores (1, labels), or an encoder's last hidden states."""
    import torch

    inputs = {name: torch.from_numpy(np.asarray(ids, np.int64))[None] for name, ids in given.items()}
    with torch.inference_mode():
        output = model(**inputs, use_cache=False) if causal(model) else model(**inputs)
    found = output.logits if "logits" in output else output.last_hidden_state
    return (found[0] if found.ndim > 2 else found).double().numpy()


def causal(model: Any) -> bool:
    return hasattr(model, "generation_config") and not model.config.is_encoder_decoder


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found[-len(wanted) :] - wanted).max() / wanted.std())


# Tokenizers


def tokenizer_differences(folder: Path, file: Path, back: Path) -> list[str]:
    """How the exported tokenizer differs from the checkpoint's own, as AutoTokenizer loads both; not where it cuts as
    the file's does: classes of transformers have ways of their own with some model files.
    """
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception:
        return []  # nothing to compare with
    try:
        ours = AutoTokenizer.from_pretrained(back, trust_remote_code=False)
    except Exception as error:
        return [f"tokenizer does not load: {type(error).__name__}: {str(error)[:200]}"]
    wrong, own = [], gguftools.open(file).tokenizer
    metadata = gguftools.open(file).metadata
    begins, rows = metadata.get("tokenizer.ggml.bos_token_id"), len(metadata["tokenizer.ggml.tokens"])
    for special in (False, True)[: 1 + (begins in (None, theirs.bos_token_id))]:  # a config.json may contradict it
        for text in TEXTS:
            wanted, found = (each(text, add_special_tokens=special)["input_ids"] for each in (theirs, ours))
            if max(wanted, default=0) >= rows:
                continue  # a vocabulary larger than the embedding, whose letters it lacks
            if wanted != found and own.encode(text, add_special=special, parse_special=True) != found:
                wrong.append(f"{text!r} is cut otherwise ({wanted} → {found})")
    return [f"tokenizer: {each}" for each in wrong[:2]]


# Checkpoints


def recorded(entry: str, folder: Path) -> list[tuple[dict[str, Any], Any]]:
    """Build an entry of the zoo or of tests/data/families; its prompts with the true logits."""
    if entry in checkpoints.entries():
        checkpoints.build(entry, folder)
        source = checkpoints.FAMILIES / entry
    else:
        zoo_build.build(zoo.ZOO, entry, folder)
        source = zoo.ZOO / entry
    truth = np.load(source / "logits.npz")
    said = json.loads((source / "spec.json").read_text(encoding="utf-8")).get("truth", "")
    if attention(folder) != "eager" or said.startswith(OTHERWISE):
        model, _ = loaded(folder)  # the recorded truth is of eager attention, or not of the class as it is
        return [(given, run(model, given)) for given in (arguments(truth, prompt) for prompt in "01")]
    return [(arguments(truth, prompt), truth[f"logits{prompt}"].astype(np.float64)) for prompt in "01"]


def arguments(truth: Any, prompt: str) -> dict[str, Any]:
    decoder = {"decoder_input_ids": truth[f"dec{prompt}"]} if f"dec{prompt}" in truth else {}
    return {"input_ids": truth[f"ids{prompt}"], **decoder}


def entries() -> list[str]:
    return sorted({*zoo.entries(), *checkpoints.entries()})


def of_entries(names: list[str]) -> Iterator[Found]:
    for entry in names:
        with tempfile.TemporaryDirectory() as work:
            yield guarded(entry, Path(work), recorded(entry, Path(work) / entry))


def of_random_options(count: int, seed: int) -> Iterator[Found]:
    """Configs that transformers or our converter refuses are left out."""
    from .options import cases

    yield from of_configs(cases(count, seed))


def of_each_option(pattern: str, only: str) -> Iterator[Found]:
    """The same of every option by itself whose key fits the pattern, of the bases whose names begin with `only`."""
    from .options import each_option

    yield from of_configs(each_option(pattern, only))


def of_classes(only: str) -> Iterator[Found]:
    """A checkpoint of every class that transformers has and that matches a regular expression."""
    from .classes import plain

    yield from of_configs(plain(only))


def of_configs(cases: Iterator[tuple[str, Base, Config]]) -> Iterator[Found]:
    from .forward import prompt
    from .original import RefusedError, load, logits, write_checkpoint

    for name, base, config in cases:
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / name
            try:
                write_checkpoint(name, base, config, folder)
                model, (ids, decoder_ids) = load(base, folder), prompt(name)
                decoder = {"decoder_input_ids": decoder_ids} if model.config.is_encoder_decoder else {}
                wanted = logits(model, ids, decoder_ids if decoder else ())
            except RefusedError:
                continue
            if np.isfinite(wanted).all() and wanted.std() > 0:
                found = guarded(name, Path(work), [({"input_ids": ids, **decoder}, wanted)])
                if found.wrong:
                    changed = {key: value for key, value in config.items() if base.config.get(key, ...) != value}
                    found.wrong.append(json.dumps(changed))
                yield found


def guarded(name: str, work: Path, truth: list[tuple[dict[str, Any], Any]]) -> Found:
    try:
        return examine(name, work / name, work, truth)
    except Exception:
        return Found(name, wrong=["traceback: " + traceback.format_exc().splitlines()[-1]])


def main(arguments: list[str]) -> int:
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("entries", nargs="*", metavar="ENTRY")
    parser.add_argument("--count", type=int, default=0, help="checkpoints with random options")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", metavar="KEYS", help="every option by itself whose key fits this pattern")
    parser.add_argument("--only", default="", metavar="NAME", help="of --each: bases whose names begin so")
    parser.add_argument("--classes", metavar="REGEX", help="a checkpoint of every class with such a name")
    parser.add_argument("--record", action="store_true", help="keep what is right for the usual tests")
    chosen = parser.parse_args(arguments)
    wrong = refused = total = 0
    recorded: list[dict[str, Any]] = []
    others = chosen.count or chosen.each is not None or chosen.classes is not None
    named = of_entries(chosen.entries if chosen.entries or others else entries())
    each = () if chosen.each is None else of_each_option(chosen.each, chosen.only)
    classes = () if chosen.classes is None else of_classes(chosen.classes)
    try:
        for found in itertools.chain(named, of_random_options(chosen.count, chosen.seed), each, classes):
            print(found, flush=True)
            total, wrong, refused = total + 1, wrong + bool(found.wrong), refused + bool(found.refused)
            recorded += [found.line] if found.line else []
    finally:
        if chosen.record:
            exported.keep(recorded)
    print(f"{total} exports: {wrong} wrong, {refused} refused")
    return int(bool(wrong))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
