"""Write what Ollama reads: a Modelfile, and the files `template`, `system` and `params` that it takes from the hub.

Sources: docs/modelfile.mdx and docs/template.mdx of Ollama; packages/ollama-utils of huggingface.js.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quants.errors import VocabularyError

from ...metadata.chat_templates import CHAT_TEMPLATE
from ...models.model import Model
from .turns import Around, Turns, turns_of

OLLAMA_FILES = ("Modelfile", "template", "system", "params")
SAMPLING = {  # Sampling's names → Ollama's
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
}


@dataclass(frozen=True)
class OllamaModel:
    """What Ollama has to know of a model.

    template: in Go, None for the file's own. is_chat: the file has a chat template. remarks: what it lacks, and why.
    """

    template: str | None
    system: str | None
    stop: Sequence[str]
    parameters: Mapping[str, float | int]
    license: str | None = None
    is_chat: bool = False
    remarks: Sequence[str] = field(default_factory=list)

    def modelfile(self, file: str) -> str:
        """Return the Modelfile of a model in a file next to it."""
        lines = [f"FROM ./{file}"]
        if self.template is not None:
            lines.append(f"TEMPLATE {_quoted(self.template)}")
        if self.system:
            lines.append(f"SYSTEM {_quoted(self.system)}")
        lines += [f"PARAMETER {name} {value:g}" for name, value in self.parameters.items()]
        lines += [f"PARAMETER stop {_quoted(each)}" for each in self.stop]
        if self.license:
            lines.append(f"LICENSE {_quoted(self.license)}")
        return "\n".join(lines) + "\n"

    def params(self) -> str:
        """Return the JSON of the file `params`; "" if there is none to give."""
        given: dict[str, Any] = dict(self.parameters)
        if self.stop:
            given["stop"] = list(self.stop)
        return json.dumps(given, ensure_ascii=False, indent=2) + "\n" if given else ""


def ollama_model(model: Model) -> OllamaModel:
    """Return what Ollama has to know of a model.

    Raises ModelError for advice on sampling that cannot be used, VocabularyError for a vocabulary that cannot be read.
    """
    from runtime.sampling.parameters import advised

    metadata, tokenizer = model.metadata, model.tokenizer
    advice = advised(metadata)
    license = metadata.get("general.license")
    remarks, turns = [], None
    try:
        bos = tokenizer.pieces[tokenizer.bos].decode() if tokenizer.add_bos and tokenizer.bos is not None else ""
        turns = turns_of(metadata, bos)
        if turns is None:
            remarks.append("the chat template does more than put texts around messages: Ollama runs the file's own")
    except VocabularyError as error:
        remarks.append(f"Ollama gets no template: {error}")
    return OllamaModel(
        None if turns is None else go_template(turns),
        None if turns is None else turns.default_system,
        stop_texts(model),
        {ollama: advice[own] for own, ollama in SAMPLING.items() if own in advice},
        license if isinstance(license, str) else None,
        CHAT_TEMPLATE in metadata,
        remarks,
    )


def stop_texts(model: Model) -> list[str]:
    """Return the texts of the tokens that end an answer."""
    tokenizer = model.tokenizer
    return [tokenizer.pieces[number].decode(errors="replace") for number in tokenizer.end_ids]


def go_template(turns: Turns) -> str:
    """Return a Go template that puts the same texts around messages."""
    lines = ["{{- range $i, $message := .Messages }}", "{{- $last := eq (len (slice $.Messages $i)) 1 }}"]
    if turns.system is not None and turns.default_system is not None:
        default = _text(turns.system.before + turns.default_system + turns.system.after)
        lines.append(f'{{{{- if and (eq $i 0) (ne .Role "system") }}}}{default}{{{{- end }}}}')
    lines += _branch("if", "user", _user(turns))
    if turns.system is not None:
        opened = ["{{- $opened = true }}"] if turns.system_in_user else []
        lines += _branch("else if", "system", [*_message(turns.system), *opened])
    after = _text(turns.assistant.after)
    answer = _message(Around(turns.assistant.before, ""))
    answer += [f"{{{{- if not $last }}}}{after}{{{{- end }}}}"] if after else []
    lines += _branch("else if", "assistant", answer)
    lines.append("{{- end }}")
    if turns.to_answer:
        lines.append(f'{{{{- if and $last (ne .Role "assistant") }}}}{_text(turns.to_answer)}{{{{- end }}}}')
    lines.append("{{- end }}")
    return "\n".join([*(["{{- $opened := false }}"] if turns.system_in_user else []), *lines])


def _user(turns: Turns) -> list[str]:
    if not turns.system_in_user:
        return _message(turns.user)
    before = f"{{{{- if not $opened }}}}{_text(turns.user.before)}{{{{- end }}}}"
    return [before, "{{- $opened = false }}", *_message(Around("", turns.user.after))]


def _branch(condition: str, role: str, lines: Sequence[str]) -> list[str]:
    return [f'{{{{- {condition} eq .Role "{role}" }}}}', *lines]


def _message(around: Around) -> list[str]:
    return [each for each in (_text(around.before), "{{- .Content }}", _text(around.after)) if each]


def _text(literal: str) -> str:
    """Return an action that prints a text, which keeps its white space."""
    return f"{{{{- {json.dumps(literal, ensure_ascii=False)} }}}}" if literal else ""


def _quoted(text: str) -> str:
    """Return a value of a Modelfile, in which nothing can be escaped."""
    if "\n" not in text and not text.startswith('"') and text == text.strip():
        return text if '"' in text else f'"{text}"'
    return f'"""{text} """' if text.endswith('"') else f'"""{text}"""'
