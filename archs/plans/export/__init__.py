"""Plan an export, GGUF → checkpoint: the inverse of an architecture's mapping, tensors and config.

The result is checked by converting it again, headers only: names, shapes and metadata must equal the file's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import FormatError, ModelError

from ...classifier_heads import headed
from ...config import ReadConfig, normalized
from ...diffusion.image_file import check_text_model
from ...encoder import NAME
from ...hparams.file_keys import completed
from ...hparams.model_hparams import HParams, read_hparams
from ...model_type import filled_in, with_types
from ...mtp import has_only_mtp
from ...registry import architectures, of_config
from ...rope import SCALING
from ...schema import MODEL, TOKENS
from ...spec import Architecture, Config, TensorMap, Tensors
from ...tensor_maps import NotExportable
from ...validation.model_validators import check_model
from ..mmproj import all_encoders
from ..text import architecture_metadata, map_tensors
from .config import SECTIONS, export_config, number
from .tensors import OUTSIDE, export_tensors, without_inverse

SAYS_NOTHING = {  # that do not affect logits or hidden states
    "vocab_size",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "pooling_type",
    "classifier.pooling_type",
    "classifier.output_labels",
    "classifier.hidden_activation",
}
# tensors show the values of the others
MEANINGFUL = {key for key, rule in MODEL.items() if not rule.shaping} - SAYS_NOTHING
WHICH_CHOOSE = "attention.indexer.types"  # layers; all of them if a file has none
# Model types that stand for other models in transformers: Grok 2's configs use the first; InternLM 3's class, unlike
# the published code, takes no biases of q, k and v alone.
OTHERS = {"git", "internlm3"}
VOCABULARIES = {
    "gpt2": {"bpe"},
    "llama": {"sentencepiece"},
    "t5": {"unigram", "sentencepiece", "fairseq"},
    "bert": {"wordpiece"},
}
IS_PART = "it is the text part of a model of images"
NEEDS_BOTH = f"needs --mmproj: {IS_PART}"
NEEDS_ENCODERS = "name the file of its encoders, too: `gguftools export MODEL --mmproj ENCODERS -o FOLDER`"


@dataclass(frozen=True)
class ExportPlan:
    """A file as the checkpoint that it could come from. tensors: by Hugging Face name, read lazily.

    differing: metadata keys that converting it would write differently, with those values. preprocessor: content of
    preprocessor_config.json of a model with encoders; tokenizer: what its processor needs in tokenizer_config.json.
    """

    architecture: Architecture
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    differing: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, str] = field(default_factory=dict)


def plan_export(metadata: Mapping[str, Any], tensors: Tensors) -> ExportPlan:
    """Return the checkpoint that converts to these tensors. Of several families of one GGUF name, the first that fits.

    Raises ModelError where none does, saying why.
    """
    name = metadata.get("general.architecture")
    vocab_types = VOCABULARIES.get(metadata.get("tokenizer.ggml.model", ""), set())
    family = [a for a in architectures() if a.name == name and (not vocab_types or vocab_types & set(a.vocab))]
    if name == NAME:
        raise ModelError("the file has encoders for images or audio; it makes no checkpoint alone", NEEDS_ENCODERS)
    if not family:
        check_text_model(name)
        raise ModelError(f"general.architecture {name!r} is not one that can become a checkpoint")
    if has_only_mtp(metadata, tensors):
        raise ModelError("the file has only the MTP layers: they make no checkpoint")
    images = f"{name}.{SECTIONS}" in metadata
    if images and not any(a.hf_classes[0].endswith("ForCausalLM") and SECTIONS in a.metadata for a in family):
        problem = "the file is the text part of a model of images; it cannot become a checkpoint of its own"
        raise ModelError(problem, NEEDS_ENCODERS)
    return plan_best(family, metadata, tensors)


def plan_best(
    family: Sequence[Architecture],
    metadata: Mapping[str, Any],
    tensors: Tensors,
    around: Mapping[str, Any] | None = None,
) -> ExportPlan:
    """Return the checkpoint of the first of a family's architectures that fits. around: the rest of the whole model's
    config, if this is its text part. Raises ModelError if none fits.
    """
    check_model(family[0], metadata, tensors)
    starts = (f"{family[0].name}.", "xielu.", "diffusion.")
    of_model = {key: value for key, value in metadata.items() if key.startswith((*starts, TOKENS))}
    reasons, plans = [], []
    for architecture in family:
        try:
            plans.append(_plan(headed(architecture, tensors), of_model, tensors, around))
        except (ModelError, FormatError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            ours = isinstance(error, (ModelError, FormatError))
            why = error if ours else f"its metadata makes no config ({type(error).__name__}: {error})"
            reasons.append(f"{architecture.hf_classes[0]}: {why}")
    if not plans:
        raise ModelError(f"the file cannot become a checkpoint: {'; '.join(reasons)}")

    def rules(architecture: Architecture) -> int:
        """Return the number of rules used, without tensors outside the base model, which are often missing."""
        names = [target.name if isinstance(target, TensorMap) else target for target in architecture.tensors.values()]
        return sum(not (isinstance(name, str) and name.partition(".")[0] in OUTSIDE) for name in names)

    return min(
        plans,
        key=lambda plan: (
            len(plan.differing),
            -len(_own_tokens(plan.architecture, metadata)),
            rules(plan.architecture),
        ),
    )


def _own_tokens(architecture: Architecture, metadata: Mapping[str, Any]) -> list[str]:
    """Return the special-token keys of a file that the family sets itself."""
    texts = metadata.get(TOKENS, ())
    stored = {key: metadata.get(f"tokenizer.ggml.{key}") for key in architecture.vocab_keys}
    ids = {key: number for key, number in stored.items() if isinstance(number, int) and not isinstance(number, bool)}
    named = {key: texts[number] if 0 <= number < len(texts) else None for key, number in ids.items()}
    return [
        key
        for key, wanted in architecture.vocab_keys.items()
        if stored[key] is not None and wanted in (stored[key], named.get(key))
    ]


def obstacle(architecture: Architecture) -> str | None:
    """Return why no file of a family can become a checkpoint; None if it may."""
    if isinstance(architecture.config_from_gguf, NotExportable):
        return architecture.config_from_gguf.reason
    if architecture.prepare and not architecture.prepare_export:
        return "what is done to its checkpoints before anything else cannot be undone"
    if is_part(architecture):
        return NEEDS_BOTH if {*architecture.hf_classes} & _whole_classes() else IS_PART
    if lost := without_inverse(architecture):
        return f"what is done to {lost[0]!r} cannot be undone"
    return None


@cache
def _whole_classes() -> set[str]:
    """Return the multimodal classes that both files can become."""
    return {wrapper.hf_class for encoder in all_encoders() for wrapper in encoder.wrappers}


def is_part(architecture: Architecture) -> bool:
    """Return whether transformers has no class with logits for the text part alone."""
    sections = SECTIONS in architecture.metadata and not architecture.hf_classes[0].endswith("ForCausalLM")
    return sections or architecture.part


def _plan(
    architecture: Architecture, own: Mapping[str, Any], tensors: Tensors, around: Mapping[str, Any] | None
) -> ExportPlan:
    """Plan the export to one architecture. own: the file's keys of the model, and its tokens."""
    if (reason := obstacle(architecture)) and not (is_part(architecture) and around is not None):
        raise ModelError(reason)
    metadata = {key: value for key, value in completed(architecture, own).items() if key != TOKENS}
    made = with_types(export_config(architecture, metadata, tensors))
    config = {**(around or {}), **made}
    full = normalized(config, architecture.defaults, architecture.keys)
    source = export_tensors(architecture, full, metadata, tensors)
    again = map_tensors(architecture, full, source)
    for name, tensor in tensors.items():
        if name not in again.tensors:
            raise ModelError(f"no source tensor gives {name!r}")
        if again.tensors[name].shape != tensor.shape:
            raise ModelError(f"{name!r} would have shape {again.tensors[name].shape}, not {tensor.shape}")
    if extra := [name for name in again.tensors if name not in tensors]:
        raise ModelError(f"the file has no {extra[0]!r}, which a conversion would write")
    scalars = again.metadata(architecture)
    if architecture.prepare_export:
        source = dict(architecture.prepare_export(full, source))
    _check_meaning(architecture, config, full, scalars, source, tensors)
    again_written = architecture_metadata(architecture, full) | scalars
    differing = differences(metadata, again_written)
    _check_values(architecture, metadata, differing, tensors)
    differing = {key: value for key, value in differing.items() if key in own or key in again_written}  # not assumed
    written = {key: value for key, value in made.items() if key not in architecture.derived_keys}
    return ExportPlan(architecture, written, source, differing)


def differences(metadata: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys that have other values in `written`, with those."""
    keys = dict.fromkeys([*metadata, *written])
    return {key: written.get(key) for key in keys if not _same(metadata.get(key), written.get(key))}


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    if any(isinstance(each, list | tuple) and any(isinstance(item, str) for item in each) for each in (a, b)):
        return list(a) == list(b)
    return np.array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


def _check_values(
    architecture: Architecture, metadata: Mapping[str, Any], differing: Mapping[str, Any], tensors: Tensors
) -> None:
    """Raise ModelError if converting the config would write other keys that change the model's computation, or a
    converted key differs from the file. Files of other converters may omit redundant keys, or have keys that no model
    reads.
    """
    unread, changing = _changes(architecture, metadata, differing, tensors)
    lost = []
    for key in unread:
        name = key.removeprefix(f"{architecture.name}.")
        own = name in architecture.metadata and name not in SAYS_NOTHING and key in metadata
        texts = (str(values.get(key)).lower() for values in (metadata, differing))  # of rotary scaling, "none" is one
        if (name in MEANINGFUL or own) and len({*texts}) > 1:
            lost.append(key)
    for key in lost + changing:
        value = f"not {_shown(metadata[key])}" if key in metadata else "which the file does not have"
        raise ModelError(f"a conversion of its config would write {key} = {_shown(differing[key])}, {value}")


def _check_meaning(
    architecture: Architecture,
    config: Config,
    full: Config,
    scalars: Mapping[str, Any],
    source: Tensors,
    tensors: Tensors,
) -> None:
    """Raise ModelError unless transformers reads the config as the conversion does: with its defaults filled in, it
    must give the same keys. scalars: those that the tensors give. source: the checkpoint's tensors; tensors: the
    file's.
    """
    meant_by = of_config(config)
    if meant_by.name != architecture.name:
        raise ModelError(f"its config would be read as one of {meant_by.name!r}")
    meant = None if config["model_type"] in OTHERS else filled_in(config)
    if meant is None:
        return
    filled = normalized(meant | {"architectures": config["architectures"]}, architecture.defaults, architecture.keys)
    if architecture.prepare:
        filled = ReadConfig(architecture.prepare(filled, source)[0])
    ours, theirs = ({**architecture_metadata(architecture, each), **scalars} for each in (full, filled))
    # Redundant keys, which a conversion writes if the config has their default.
    start = f"{architecture.name}."
    implied, heads = {f"{start}rope.freq_base_swa": full.get("rope_theta")}, ours.get(f"{start}attention.head_count")
    if isinstance(heads, int) and heads:
        width = ours[f"{start}embedding_length"] // heads
        implied |= {f"{start}attention.key_length": width, f"{start}attention.value_length": width}
    if all(chosen := theirs.get(f"{start}{WHICH_CHOOSE}") or ()):
        implied[f"{start}{WHICH_CHOOSE}"] = chosen
    wanted = {key: value for key, value in implied.items() if key in theirs} | ours
    differing = differences(wanted, theirs)
    unread, changing = _changes(architecture, wanted, differing, tensors)
    for key in unread + changing:
        difference = f"{key} = {_shown(differing[key])}, not {_shown(wanted.get(key))}"
        raise ModelError(f"transformers would read its config as {difference}")


def _changes(
    architecture: Architecture, metadata: Mapping[str, Any], differing: Mapping[str, Any], tensors: Tensors
) -> tuple[list[str], list[str]]:
    """Return the differing keys that hyperparameters are not read from, and the one that changes hyperparameters."""
    own = _ReadKeys(metadata)
    before = _numbers(architecture, own, tensors)

    def changes(values: Mapping[str, Any]) -> bool:
        values = {**metadata, **values}
        present = {key: value for key, value in values.items() if value is not None}
        return _numbers(architecture, present, tensors) != before

    scaling = {f"{architecture.name}.{key}" for key in SCALING}  # of which other numbers are made as well
    scales = any(layer.rotates and layer.rope_scaled for layer in before.layers)
    unread = [key for key in differing if key not in (own.read - scaling if scales else own.read | scaling)]
    return unread, sorted(differing, key=lambda key: changes({key: differing[key]}))[-1:] if changes(differing) else []


def _numbers(architecture: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> HParams:
    numbers = read_hparams(architecture, metadata, tensors)
    return numbers if numbers.temperature_scale else replace(numbers, temperature_length=0)


class _ReadKeys(dict[str, Any]):
    """Metadata that records the keys that are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(number(value))
