"""Chat templates: one, or several with names, from the same files that transformers reads.

Files of Jinja come first: where there is a chat_template.jinja or a file in additional_chat_templates, these are all
that count. Then comes tokenizer_config.json, and last what only processors read: processor_config.json and
chat_template.json.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gguf.constants import Keys

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..small_files import read_json_object, read_text
from ..typed_json import Either, FieldType, MapOf, Text, read_fields
from .files import TokenizerFiles

DEFAULT = "default"
JINJA, FOLDER = "chat_template.jinja", "additional_chat_templates"
OF_PROCESSORS = ("processor_config.json", "chat_template.json")  # in this order
PROCESSOR: dict[str, FieldType] = {"chat_template": Either((Text(), MapOf(Text())))}


def write_templates(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the default template to `tokenizer.chat_template` and each named one to `tokenizer.chat_template.NAME`.

    Raises VocabularyError for two whose names are one key.
    """
    templates = checkpoint_templates(files)
    default = templates.pop(DEFAULT, None)
    for name, text in templates.items():
        metadata[Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name)] = text
    if templates:
        metadata[Keys.Tokenizer.CHAT_TEMPLATES] = list(templates)
    if default is not None:
        metadata[Keys.Tokenizer.CHAT_TEMPLATE] = default


def checkpoint_templates(files: TokenizerFiles) -> dict[str, str]:
    """Return a checkpoint's templates by name, as they become keys. Raises VocabularyError for two of one name."""
    templates = _from_files(files) or files.config.get("chat_template") or _of_processor(files)
    return {DEFAULT: templates} if isinstance(templates, str) else _named(templates)


def add_template(metadata: Metadata, name: str, text: str) -> None:
    """Add a template under a name."""
    metadata[Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name)] = text
    metadata[Keys.Tokenizer.CHAT_TEMPLATES] = [*metadata.get(Keys.Tokenizer.CHAT_TEMPLATES, ()), name]


def restored_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return a file's templates by name, the default one first."""
    main, start = metadata.get(Keys.Tokenizer.CHAT_TEMPLATE), f"{Keys.Tokenizer.CHAT_TEMPLATE}."
    named = {key.removeprefix(start): metadata[key] for key in metadata if key.startswith(start)}
    return named if main is None else {DEFAULT: main} | named


def template_files(templates: Mapping[str, str]) -> dict[str, bytes]:
    """Return templates as files of Jinja, which are what processors read."""
    return {JINJA if name == DEFAULT else f"{FOLDER}/{name}.jinja": text.encode() for name, text in templates.items()}


def _from_files(files: TokenizerFiles) -> dict[str, str]:
    """Return templates by name, from files of Jinja."""
    paths = {path.name.removesuffix(".jinja"): path for path in sorted((files.folder / FOLDER).glob("*.jinja"))}
    if (main := files.folder / JINJA).is_file():
        paths = {DEFAULT: main} | paths
    return {name: read_text(path) for name, path in paths.items()}


def _of_processor(files: TokenizerFiles) -> Any:
    for name in OF_PROCESSORS:
        path = files.folder / name
        content = read_fields(read_json_object(path, optional=True), PROCESSOR, str(path), VocabularyError)
        if template := content.get("chat_template"):
            return template
    return None


def _named(templates: Any) -> dict[str, str]:
    """Return templates by name; names keep only letters and digits, as they become part of a key."""
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": text} for name, text in templates.items()]
    if not isinstance(templates, Sequence):
        return {}
    named: dict[str, str] = {}
    originals: dict[str, str] = {}
    for entry in templates:
        if not entry.get("name") or entry.get("template") is None:
            continue
        name = re.sub("[^A-Za-z0-9]", "_", entry["name"])
        if originals.setdefault(name, entry["name"]) != entry["name"]:
            raise VocabularyError(
                f"chat templates {originals[name]!r} and {entry['name']!r} would have one key, "
                f"{Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name)}",
                "rename one of them",
            )
        named[name] = entry["template"]
    return named
