"""Chat templates tried out: sample conversations are rendered as transformers does it, in a process of its own."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf.constants import Keys

from archs.metadata import Metadata
from archs.schema import SPECIAL_TOKENS, TOKENS
from archs.vocab.absent import LLAMA, assumed_id
from quants.errors import VocabularyError

from .child import ask

CHAT_TEMPLATE = "tokenizer.chat_template"
FOR_TOOLS = f"{CHAT_TEMPLATE}.tool_use"  # takes the default one's place where tools are given
SECONDS = 4.0  # of processor time: a template that takes longer for a few messages never ends
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of what a model thought before an answer, in order
LOOKS_SPECIAL = re.compile(r"<\|[^\s|<>]{1,40}\|>")

QUESTION = {"role": "user", "content": "What is 2 + 2?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": {"city": "Bath"}}}
SAMPLES: dict[str, dict[str, Any]] = {
    "a question": {"messages": [QUESTION]},
    "a conversation": {
        "messages": [QUESTION, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}]
    },
    "a system message": {"messages": [{"role": "system", "content": "Answer briefly."}, QUESTION]},
    "a tool": {
        "messages": [
            {"role": "user", "content": "Does it rain in Bath?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "rain"},
        ],
        "tools": [WEATHER],
    },
}


@dataclass(frozen=True)
class Answer:
    """A text, or (in one line) why there is none. fatal: the template is not to be tried any further."""

    text: str | None = None
    error: str | None = None
    fatal: bool = False


def render(
    template: str, conversations: Sequence[Mapping[str, Any]], seconds: float = SECONDS, now: str | None = None
) -> list[Answer]:
    """Render conversations with a template, each given as the template's variables, "messages" as transformers hands
    them to a template.

    seconds: of processor time, for all of them. now: the time that it is told, as 2026-01-01T12:00:00; None: the true.
    Raises VocabularyError, in one line, for one that takes too much time, memory or text, or breaks out of the sandbox.
    """
    given = [{**each, "messages": normalized_messages(each.get("messages", ()))} for each in conversations]
    request = {"template": template, "conversations": given, "now": now}
    lines, death = ask("gguftools.metadata.sandbox", request, seconds)
    answers = [Answer(**line) for line in lines]
    if answers and answers[-1].fatal:
        raise VocabularyError(f"the chat template {answers[-1].error}")
    if len(answers) < len(conversations):
        raise VocabularyError(f"the chat template {death}")
    return answers


def normalized_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as transformers gives them to templates: without keys whose value is None, and the reasoning of
    an answer under `reasoning_content` and `thinking`, whichever of REASONING it came under.
    """
    normalized = []
    for message in messages:
        if not isinstance(message, Mapping):  # the template says what is wrong with it
            normalized.append(message)
            continue
        kept = {key: value for key, value in message.items() if value is not None}
        if (reasoning := next((kept[key] for key in REASONING if key in kept), None)) is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        normalized.append(kept)
    return normalized


def special_texts(metadata: Metadata) -> dict[str, str]:
    """Return bos_token, eos_token, … as templates know them; of SentencePiece's BPE also those that no key names."""
    texts = {"bos_token": "", "eos_token": ""}  # which llama.cpp always gives
    tokens = metadata.get(TOKENS, ())
    for role in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"):
        number = metadata.get(key := SPECIAL_TOKENS[role])
        if number is None and metadata.get(Keys.Tokenizer.MODEL) == LLAMA:
            number = assumed_id(metadata, key, len(tokens))
        if isinstance(number, int) and 0 <= number < len(tokens):
            texts[f"{role}_token"] = tokens[number] if isinstance(tokens[number], str) else ""
    return texts


def rendered(
    metadata: Metadata,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    ask_for_answer: bool = True,
    now: str | None = None,
) -> str:
    """Render a conversation with the file's own template. ask_for_answer: up to where the answer begins.

    Raises VocabularyError for a template that is missing, fails, or refuses the conversation; as `render` does.
    """
    template = _template_for(metadata, tools)
    variables = {"tools": tools, "documents": None, "add_generation_prompt": ask_for_answer, "messages": messages}
    answer = render(template, [variables | special_texts(metadata)], now=now)[0]
    if answer.text is None:
        raise VocabularyError(f"the chat template {answer.error}")
    return answer.text


def _template_for(metadata: Metadata, tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the default template, or that for tools where some are given. Raises VocabularyError where none is."""
    template = metadata.get(CHAT_TEMPLATE)
    if tools is not None:
        template = metadata.get(FOR_TOOLS, template)
    if isinstance(template, str):
        return template
    if named := metadata.get(f"{CHAT_TEMPLATE}s"):
        raise VocabularyError(
            f"the file has chat templates for {', '.join(map(str, named))}, and no default one",
            "set one with `gguftools set-metadata`",
        )
    raise VocabularyError("the file has no chat template", "set one with `gguftools set-metadata`")


def try_template(template: str, metadata: Metadata) -> list[Answer]:
    """Render each of SAMPLES with a template; the first must come through.

    Raises VocabularyError where it does not, and as `render` does.
    """
    common = {"tools": None, "documents": None, "add_generation_prompt": True, **special_texts(metadata)}
    answers = render(template, [common | sample for sample in SAMPLES.values()])
    if answers[0].text is None:
        raise VocabularyError(f"the chat template {answers[0].error}")
    return answers


def remarks(answers: list[Answer], metadata: Metadata) -> Iterator[str]:
    """Return what is odd about a template that works, by its texts of SAMPLES."""
    for sample, answer in zip(SAMPLES, answers, strict=True):
        if answer.error:
            yield f"with {sample}, the chat template {answer.error}"
    if QUESTION["content"] not in (answers[0].text or ""):
        yield "the chat template drops what the user says"
    written = {token for each in answers for token in LOOKS_SPECIAL.findall(each.text or "")}
    if written and TOKENS in metadata:
        for token in sorted(written - set(metadata[TOKENS])):
            yield f"the chat template writes {token!r}, which is no token of this vocabulary"
