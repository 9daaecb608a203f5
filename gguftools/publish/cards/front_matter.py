"""Make the front matter of a model card: what the hub reads of a repository.

Source: the hub's documentation of model cards (docs/hub/model-cards.md, docs/hub/models-card-metadata).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from archs.metadata import Metadata
from quants.errors import FileError

FRONT = re.compile(r"\A---\r?\n(?P<yaml>.*?)\r?\n---\r?\n?", re.DOTALL)
HUB_URL = re.compile(r"https?://huggingface\.co/(?P<id>[\w.-]+/[\w.-]+)/?$")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
ORDER = (
    "license",
    "license_name",
    "license_link",
    "language",
    "base_model",
    "base_model_relation",
    "pipeline_tag",
    "quantized_by",
    "tags",
)


def front_matter(
    metadata: Metadata,
    *,
    base_model: str | None = None,
    quantized_by: str | None = None,
    tags: Sequence[str] = (),
    encoders: Metadata | None = None,
) -> dict[str, Any]:
    """Return what is known of a model from its file; keys without a value are left out.

    base_model: ORG/MODEL that the files were made from; None for the one that the file names. tags: more of them.
    encoders: metadata of the encoders' file, if there is one.
    """
    base = base_model or base_of(metadata)
    known = {
        "license": _text(metadata, "general.license"),
        "license_name": _text(metadata, "general.license.name"),
        "license_link": _text(metadata, "general.license.link"),
        "language": _texts(metadata, "general.languages"),
        "base_model": base,
        "base_model_relation": "quantized" if base else None,
        "pipeline_tag": _pipeline_tag(metadata) if encoders is None else _tag_of_encoders(encoders),
        "quantized_by": quantized_by,
        "tags": list(dict.fromkeys(["gguf", *tags, *_texts(metadata, "general.tags")])),
    }
    if known["license"] != "other":
        known |= {"license_name": None, "license_link": None}
    return {name: known[name] for name in ORDER if known[name]}


def base_of(metadata: Metadata) -> str | None:
    """Return the ORG/MODEL of the hub that a file says it was made from, by its source's address or its own."""
    for key in ("general.source.repo_url", "general.source.url", "general.repo_url", "general.url"):
        value = metadata.get(key)
        if isinstance(value, str) and (name := hub_id(value)):
            return name
    return None


def hub_id(text: str) -> str | None:
    """Return the ORG/MODEL of an address on the hub, or of such a name itself; None for another text."""
    if match := HUB_URL.match(text):
        return match["id"]
    return text if HUB_ID.fullmatch(text) else None


def split_front(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a card and the rest. Raises FileError for one that is no YAML mapping."""
    match = FRONT.match(text)
    if match is None:
        return {}, text
    try:
        values = yaml.safe_load(match["yaml"]) or {}
    except yaml.YAMLError as error:
        raise FileError(f"the front matter is no YAML: {str(error).splitlines()[0]}", "mend it, or overwrite") from None
    if not isinstance(values, dict):
        raise FileError("the front matter is no mapping of names to values", "mend it, or overwrite")
    return values, text[match.end() :]


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the front matter of an existing card with what it lacks; values that are there stay, tags add up."""
    tags = [*_listed(old.get("tags")), *_listed(new.get("tags"))]
    both = {**new, **{name: value for name, value in old.items() if value not in (None, "", [])}}
    if tags:
        both["tags"] = list(dict.fromkeys(tags))
    return both


def as_text(values: Mapping[str, Any]) -> str:
    """Return front matter with its marks."""
    return f"---\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}---\n" if values else ""


def _pipeline_tag(metadata: Metadata) -> str | None:
    pooling = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if pooling == 4:
        return "text-ranking"
    if pooling in (1, 2, 3):
        return "feature-extraction"
    return "text-generation" if pooling is None else None


def _tag_of_encoders(metadata: Metadata) -> str:
    sees, hears = (bool(metadata.get(f"clip.has_{what}_encoder")) for what in ("vision", "audio"))
    return "any-to-any" if sees and hears else "audio-text-to-text" if hears else "image-text-to-text"


def _text(metadata: Metadata, key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value else None


def _texts(metadata: Metadata, key: str) -> list[str]:
    return [each for each in _listed(metadata.get(key)) if isinstance(each, str)]


def _listed(value: Any) -> list[Any]:
    if value is None or isinstance(value, (str, int, float)):
        return [] if value is None else [value]
    return list(value)
