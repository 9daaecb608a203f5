"""Record what transformers' config classes declare: `make model-types`, or python -m tests.verify.model_types.

Writes archs/model_types.json.gz from the installed transformers: of each model type the keys of its config with the
type of their numbers, other names of keys, the model types of its parts, and the class that classifies texts. Exports
are written by that table alone, so that they do not depend on the version that is installed;
tests/archs/test_model_type.py compares both.
"""

from __future__ import annotations

import gzip
import inspect
import json
import types
import typing
from typing import Any

from archs.model_type import TABLE

NUMBERS = {int: "int", float: "float"}


def recorded() -> dict[str, Any]:
    """The table of the installed transformers."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    common = declared_keys(transformers.PreTrainedConfig)
    found = {}
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        kind = config_class(model_type)
        if kind is not None:
            found[model_type] = described(kind, common)
            if model_type in CLASSIFIERS:
                found[model_type]["classifier"] = CLASSIFIERS[model_type]
    return {"transformers": transformers.__version__, "common": common, "types": found}


def config_class(model_type: str) -> Any:
    """The config class of a model type; None where its packages are missing."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[model_type]
    except (ImportError, AttributeError, KeyError):
        return None


def described(kind: Any, common: dict[str, str]) -> dict[str, Any]:
    """What the table holds of a config class; what is as in `common` is left out."""
    keys = {key: number for key, number in declared_keys(kind).items() if common.get(key) != number}
    parts = {key: getattr(part, "model_type", "") for key, part in (kind.sub_configs or {}).items()}
    return {"keys": keys, "other_names": dict(sorted(kind.attribute_map.items())), "parts": dict(sorted(parts.items()))}


def declared_keys(kind: Any) -> dict[str, str]:
    """Key → "int" or "float" where only such numbers are allowed, else ""."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for key, hint in inspect.get_annotations(base).items():
            if typing.get_origin(hint) is not typing.ClassVar and not key.startswith("_"):
                found[key] = number_type(hint)
    return dict(sorted(found.items()))


def number_type(hint: Any) -> str:
    """ "int" or "float" where a type hint allows only one of them, else ""."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    allowed = {*typing.get_args(hint)} if is_union else {hint}
    found = [name for number, name in NUMBERS.items() if number in allowed]
    return found[0] if len(found) == 1 else ""


def main() -> None:
    table = recorded()
    TABLE.write_bytes(gzip.compress(json.dumps(table, sort_keys=True, separators=(",", ":")).encode(), mtime=0))
    print(f"{TABLE.name}: {len(table['types'])} model types of transformers {table['transformers']}")


if __name__ == "__main__":
    main()
