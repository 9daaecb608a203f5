"""Decision models, which choose the option of a question that holds: what is known before their weights are read.

Their checkpoints are those of ordinary models with extra files: OpenJev (Qwen 3.5, which answers by a letter), Clef
(the same with a joint head), Laya and Julia (ModernBERT with a head), and adapters for Qwen 3.5: Lev and Nimble (which
answer by a label) and Kev (with a head that compares the last token with those after the options). A file gives its
type (`decision.type`), the temperatures that divide scores (`decision.temperature.…`), and the prompt as a template,
`tokenizer.chat_template.systemone`, over `state`, `type`, `id`, `instructions` and `options` (`key`, `description`,
`label`). The prompts are those that the models were trained with. Source: llama.cpp's converter, and the files that
such models are published with.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quants.errors import ModelError

from .small_files import read_json_object
from .typed_json import Fields, MapOf, Number, Place, Text, Whole, read_fields

QUESTIONS = ("choice", "score", "noul")
SIZES = ("", ".small", ".mid", ".large", ".2", ".3_5", ".6_10", ".11")  # of questions, by the number of options
TEMPERATURES = tuple(f"{question}{size}" for question in QUESTIONS for size in SIZES)
POSITIVE = Number(1e-6, 1e6)
PROMPTS = Path(__file__).with_name("decision_prompts")


def with_decision(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's config with its class and `decision`, if extra files make it a decision model.

    A `decision` in config.json itself is dropped. Raises FileError, ModelError for invalid files.
    """
    config = {key: value for key, value in config.items() if key != "decision"}
    if (folder / "helper" / "shim.py").is_file():
        by_all = {"choice": 0.85, "score": 0.85, "noul": 0.85 * 1.829074}
        return {**config, **_decision("OpenJevModel", "openjev", prompt("openjev"), by_all)}
    if (own := folder / "joint_head_config.json").is_file():
        sizes = {"routing_layers": Whole(0, 1000), "layers": Whole(0, 1000), "heads": Whole(1, 1 << 16)}
        fields = read_fields(read_json_object(own), sizes, own.name)
        if missing := [key for key in sizes if fields.get(key) is None]:
            raise ModelError(f'{own} has no "{missing[0]}"')
        head = {key: fields[key] for key in sizes}
        return {
            **config,
            **_decision("ClefModel", "clef", prompt("clef"), {}, head_file="joint_head.safetensors", **head),
        }
    return config


def encoder_config(folder: Path) -> dict[str, Any] | None:
    """Return the config of a checkpoint whose encoder and tokenizer are in folders of their own; None for others."""
    own = next(
        (
            folder / f"{name}_config.json"
            for name in ("julia", "rl_agent")
            if (folder / f"{name}_config.json").is_file()
        ),
        None,
    )
    if own is None or not (folder / "encoder" / "config.json").is_file():
        return None
    fields = read_fields(
        read_json_object(own),
        {
            "architecture": Text(),
            "head_layers": Whole(1, 1000),
            "head_max_len": Whole(1),
            "temperature_by_options": MapOf(POSITIVE),
        },
        own.name,
    )
    if fields.get("head_layers") is None:
        raise ModelError(f'{own} has no "head_layers"')
    given = fields.get("temperature") or []
    if not isinstance(given, list) or not all(isinstance(each, (int, float)) and each > 0 for each in given):
        raise ModelError(f'{own}: "temperature" is no list of numbers above 0')
    temperatures = dict(zip(QUESTIONS, map(float, given), strict=False))
    for name, value in (fields.get("temperature_by_options") or {}).items():  # as "choice:3-5", "choice:11+"
        temperatures[name.replace(":", ".").replace("-", "_").rstrip("+")] = value
    words = read_fields(
        read_json_object(folder / "tokenizer" / "tokenizer_config.json"),
        dict.fromkeys(("cls_token", "sep_token", "mask_token"), Text()),
        "tokenizer_config.json",
    )
    placeholders = {"FIRST": "cls_token", "BETWEEN": "sep_token", "MARKER": "mask_token"}
    template = prompt(
        "julia" if fields.get("architecture") == "JuliaDecisionModel" else "laya",
        **{placeholder: words.get(key) or "" for placeholder, key in placeholders.items()},
    )
    more = {
        "head_layers": fields["head_layers"],
        "head_tokens": fields.get("head_max_len") or 256,
        "folder": "tokenizer",
        "vocab": {"token_type_count": len(QUESTIONS)},
    }
    return {
        **read_json_object(folder / "encoder" / "config.json"),
        **_decision("ModernBertDecisionModel", "laya", template, temperatures, **more),
    }


def of_adapter(folder: Path) -> dict[str, Any] | None:
    """Return the changes that a decision adapter makes to Qwen 3.5's config; None for other adapters."""

    def there(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if there("lev_release.json"):
        listed = read_json_object(folder / "calibration.json").get("temperatures")
        every = MapOf(POSITIVE).read(listed or {}, Place("calibration.json"))
        names = {name: name.split(":") for name in every}
        temperatures = {  # as "choice:A:small"; of its two ways to answer, the one by labels
            ".".join([question, *size]): every[name] for name, (question, way, *size) in names.items() if way == "A"
        }
        return _decision("LevModel", "lev", prompt("lev"), temperatures)
    if there("head.pt", "training_config.json"):
        training = read_fields(
            read_json_object(folder / "training_config.json"),
            {"args": Fields({"head_dim": Whole(1, 1 << 20)})},
            "training_config.json",
        )
        if "head_dim" in (training.get("args") or {}):
            return _decision("KevModel", "kev", prompt("kev"), {}, head="head.pt")
    if there("schema_config.json"):
        task = read_json_object(folder / "schema_config.json").get("task")
        if task == "schema_candidate_classification_v2":
            return _decision("NimbleModel", "nimble", prompt("nimble"), {})
    return None


def _decision(
    name: str, decision_type: str, template: str, temperatures: Mapping[str, float], **more: Any
) -> dict[str, Any]:
    if unknown := sorted(set(temperatures) - set(TEMPERATURES)):
        raise ModelError(f"a temperature is for {unknown[0]!r} questions, which are not known")
    decision = {"type": decision_type, "template": template, "temperatures": dict(temperatures), **more}
    return {"architectures": [name], "decision": decision}


def keys_of() -> dict[str, Any]:
    """Return the keys of an architecture that may be a decision model."""

    def temperature(name: str) -> Any:
        return lambda config: ((config.get("decision") or {}).get("temperatures") or {}).get(name)

    temperatures = {f"decision.temperature.{name}": temperature(name) for name in TEMPERATURES}
    return {"decision.type": lambda config: (config.get("decision") or {}).get("type"), **temperatures}


def prompt(name: str, **words: str) -> str:
    """Return a prompt's template: the lines of its file, joined without indentation. Its texts are expressions, because
    a template's blocks swallow the line ends around them.

    words: what the file's placeholders FIRST (begins a text), BETWEEN (between its parts) and MARKER (before options)
    stand for.
    """
    template = "".join(line.strip() for line in (PROMPTS / f"{name}.jinja").read_text("utf-8").splitlines())
    for word, text in words.items():
        template = template.replace(word, json.dumps(text)[1:-1])
    return template
