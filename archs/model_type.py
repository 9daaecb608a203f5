"""How transformers reads a config.json: types, defaults and refusals, by the config class of the model type.

Written configs follow a recorded table of each class's keys (`TABLE`, made by `make model-types`), so that they are the
same with every version of transformers. The installed version only checks that a config is read as intended.
"""

import gzip
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from quants.errors import ModelError

CLASS_ENDS = re.compile("(ForCausalLM|LMHeadModel|Model|ForConditionalGeneration|ForSequenceClassification)$")
TABLE = Path(__file__).with_name("model_types.json.gz")
MAX_MESSAGE = 300  # characters of its message
ITS_OWN = ("transformers_version", "architectures", "dtype")  # keys that it fills in and that describe no model


@cache
def table() -> dict[str, Any]:
    """Return the recorded table: "transformers", its version; "common", the keys of every config; "types".

    Each model type has "keys" in addition to the common ones, with their number type ("int", "float" or "" for any);
    "other_names" of keys; "parts", the model types of its parts by key; "classifier", its class for text
    classification, if any.
    """
    content: dict[str, Any] = json.loads(gzip.decompress(TABLE.read_bytes()))
    return content


def with_types(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with whole numbers as ints or floats, as the model type requires."""
    record = _of(config["model_type"])
    if record is None:
        return dict(config)
    numbers, others = table()["common"] | record["keys"], record["other_names"]
    return {key: _number(value, numbers.get(others.get(key, key), "")) for key, value in config.items()}


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence transformers' logging (missing torch, unknown keys), which does not concern our users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@_quietly()
def filled_in(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config with the model type's defaults filled in; None where transformers lacks the type.

    Raises ModelError for a config that its class refuses.
    """
    config_class = _config_class(config["model_type"])
    if config_class is None:
        return None
    try:
        filled: dict[str, Any] = json.loads(
            config_class.from_dict(deepcopy(dict(config))).to_json_string(use_diff=False)
        )
    except Exception as error:  # a config class may raise anything on values that it refuses
        why = " ".join(str(error).split())
        why = why if len(why) <= MAX_MESSAGE else f"{why[:MAX_MESSAGE]}…"  # some messages list every known model type
        raise ModelError(f"transformers refuses the config that the file makes: {why}") from error
    return {key: value for key, value in filled.items() if key not in ITS_OWN}


def of_class(hf_class: str) -> str:
    """Return the model type of a class, as transformers usually names it."""
    return CLASS_ENDS.sub("", hf_class).lower()


def classifier(model_type: str) -> str | None:
    """Return the class that classifies texts with a model of this type; None where transformers has none."""
    hf_class: str | None = (_of(model_type) or {}).get("classifier")
    return hf_class


def part_types(model_type: str) -> dict[str, str]:
    """Return the model types of a wrapper's parts by config key, "" for parts of any type."""
    return dict((_of(model_type) or {"parts": {}})["parts"])


def own_keys(model_type: str) -> set[str]:
    """Return the keys that the model type's class names; none where transformers lacks it."""
    return {*(_of(model_type) or {"other_names": ()})["other_names"], *stored_keys(model_type)}


def stored_keys(model_type: str) -> set[str]:
    """Return `own_keys` without their alternative names."""
    return set() if (record := _of(model_type)) is None else {*table()["common"], *record["keys"]}


def _of(model_type: str) -> dict[str, Any] | None:
    """Return the record of a model type."""
    record: dict[str, Any] | None = table()["types"].get(model_type)
    return record


@_quietly()
def _config_class(model_type: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # slow to import

    try:
        return CONFIG_MAPPING[model_type]
    except KeyError:
        return None


def _number(value: Any, number_type: str) -> Any:
    if isinstance(value, float) and value.is_integer() and number_type == "int":
        return int(value)
    if type(value) is int and number_type == "float":
        return float(value)
    return value
