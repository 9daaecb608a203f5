"""Architectures by Hugging Face class and by GGUF name.

Families are the modules of `archs/families` and whatever other packages offer under the entry point group
"gguftools.architectures" (an entry point names a module). Every `Architecture` with classes at a module's top level
counts.
"""

import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from quants.errors import ModelError
from quants.spelling import did_you_mean, nearest

from . import families
from .classifier_heads import CLASS as HEADED
from .classifier_heads import with_head
from .config import FILE, text_part, typed
from .diffusion.image_file import check_text_model
from .hparams.config_keys import KEYS, TEXT_PARTS, THINKER
from .hparams.file_keys import Keys
from .spec import Architecture, Tensors
from .typed_json import Fields, Place

CAUSAL = re.compile("(ForCausalLM|LMHeadModel)$")
ENTRY_POINTS = "gguftools.architectures"

CLASS = {key: KEYS[key] for key in ("architectures", "model_type")}
PARTS = dict.fromkeys(TEXT_PARTS, Fields(CLASS))
NAMES = {**CLASS, **PARTS, THINKER: Fields({**CLASS, **PARTS})}  # keys that determine a model's class


def architectures() -> tuple[Architecture, ...]:
    """Return all known architectures that run on their own, sorted by GGUF name.

    Raises ModelError where two claim one Hugging Face class.
    """
    return _every()[0]


def drafts() -> tuple[Architecture, ...]:
    """Return the draft models that read a target model's hidden states."""
    return _every()[1]


def draft_of_file(name: object) -> Architecture | None:
    """Return the draft model whose files have `general.architecture` = name."""
    return next((each for each in drafts() if each.name == name), None)


@cache
def _every() -> tuple[tuple[Architecture, ...], tuple[Architecture, ...]]:
    listed = [value for module in _modules() for value in vars(module).values() if isinstance(value, Architecture)]
    unique = list({id(value): value for value in listed if value.hf_classes}.values())
    owners: dict[str, Architecture] = {}
    for architecture in unique:
        for hf_class in () if architecture.by_variant else architecture.hf_classes:
            if (owner := owners.setdefault(hf_class, architecture)) is not architecture:
                names = f"{owner.name}, {architecture.name}"
                raise ModelError(f"{hf_class} is claimed by two architectures: {names}")
    ordered = sorted(unique, key=lambda a: (a.name, not a.block.causal, a.by_variant, a.hf_classes))
    return tuple(each for each in ordered if not each.draft), tuple(each for each in ordered if each.draft)


def _by_class() -> dict[str, Architecture]:
    return {hf_class: a for a in architectures() if not a.by_variant for hf_class in a.hf_classes}


def classes() -> frozenset[str]:
    """Return all classes of checkpoints that can be converted, including wrappers of text models."""
    return frozenset(name for each in architectures() for name in (*each.hf_classes, *each.wrappers))


def _modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(families.__path__):
        yield importlib.import_module(f"{families.__name__}.{info.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        yield entry.load()


def by_hf_class(names: tuple[str, ...] | list[str]) -> Architecture:
    """Return the architecture of the first known of config.json's classes. Raises ModelError naming the nearest known
    ones.
    """
    known = _by_class()
    for name in names:
        if name in known:
            return known[name]
    near = [n for name in names for n in nearest(name, known, cutoff=0.5)]
    raise ModelError(
        f"model class {' / '.join(names) or '(none in config.json)'} is not supported",
        hint=f"nearest known: {', '.join(near)}" if near else "`gguftools architectures` lists what is",
    )


def of_config(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a checkpoint's config.json.

    For a multimodal class it is the architecture of its text part: by the part's class, by the part's model type if the
    multimodal class is unknown (as Llava) or has files of the same name, else the one that names the class in
    `wrappers`. Configs without classes are found by model type. Raises ModelError as `by_hf_class` does.
    """
    names = Fields(NAMES).read(config, Place(FILE))
    architecture = _of_classes(names)
    return with_head(
        (architecture.variant(typed(config, architecture.keys)) if architecture.variant else None) or architecture,
        names,
    )


def _of_classes(config: Mapping[str, Any]) -> Architecture:
    known = _by_class()
    text, classes = text_part(config), config.get("architectures") or []
    if any(set(classes) & set(each.wrappers_refused) for each in architectures()):
        return by_hf_class(classes)
    named = [name for name in text.get("architectures") or [] if name in known]
    if named:
        return known[named[0]]
    model_type = text.get("model_type") or (None if classes else config.get("model_type"))
    bare = str(model_type).removesuffix("_text").replace("_", "")
    own = {CAUSAL.sub("", name).lower().replace("_", ""): name for name in known if CAUSAL.search(name)}.get(bare)
    if own and not any(name in known and known[name].name != known[own].name for name in classes):
        return known[own]
    around = {name: each for each in architectures() for name in each.wrappers} if model_type is None else {}
    if wrapped := next((around[name] for name in classes if name in around), None):
        return wrapped
    headless = {CAUSAL.sub("", name): name for name in known if CAUSAL.search(name)}

    def decoder(name: str) -> str:
        bare = HEADED.sub("", name) if HEADED.search(name) else name.removesuffix("Model")
        return headless.get(bare) or headless.get(bare.removesuffix("Text"), name)

    return by_hf_class([name if name in known else decoder(name) for name in classes])


def config_of_tensors(tensors: Tensors) -> dict[str, Any] | None:
    """Return the config of a checkpoint published without one, if its tensors identify it."""
    for each in architectures():
        if each.config_of_tensors and (config := each.config_of_tensors(tensors)) is not None:
            return dict(config)
    return None


def by_gguf_name(name: str) -> Architecture:
    """Return the architecture that runs files of `general.architecture` = name. Raises ModelError naming the nearest
    ones.
    """
    known = {each.name: each for each in reversed(architectures())}  # the first of several families
    if name not in known and draft_of_file(name):
        problem = f"general.architecture is {name!r}: a draft, which reads what its target's layers make of a text"
        raise ModelError(problem, "run it with the target: `gguftools generate TARGET --draft FILE`")
    if name not in known:
        check_text_model(name)
        hint = did_you_mean(name, dict.fromkeys(reversed(known)), cutoff=0.5)
        raise ModelError(f"general.architecture {name!r} is not one the runtime knows", hint)
    return known[name]


def of_file(name: str, keys: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a file with these keys, which may say that all tokens see each other (LFM2's
    encoders), or be those of another one of its name (`Architecture.of_keys`).

    Raises ModelError as `by_gguf_name` does.
    """
    usual = by_gguf_name(name)
    named = [each for each in architectures() if each.name == name]
    if other := next((each for each in named if each.of_keys and each.of_keys(Keys.of(each, keys))), None):
        return other
    causal = keys.get(f"{name}.attention.causal")
    if not isinstance(causal, bool) or causal or not usual.block.causal:
        return usual
    return next((each for each in named if not each.block.causal), usual)
