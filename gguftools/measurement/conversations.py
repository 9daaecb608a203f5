"""Measure on conversations: rendered by the file's chat template, with the assistant's answers scored.

A template is a program and does not mark answers in its text. So a conversation is rendered up to each answer, with the
generation prompt, and again with the answer: the text that was added is the answer, with the token that ends it.
Templates that rewrite earlier answers (without their reasoning) make each answer a window of its own: the text that the
model would see when asked for this one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archs.small_files import parse_json
from quants.arguments import as_count
from quants.errors import FileError, OptionError, VocabularyError

from ..inspection.templates import TODAY
from ..metadata.chat_templates import SECONDS, render, special_texts
from ..models.model import Model
from .text_tokens import read_text

if TYPE_CHECKING:
    from runtime.evaluation.windows import Window
    from runtime.tokenizer import Tokenizer

AT_ONCE = 64  # texts rendered by one process
ROLE = "assistant"
MORE = ("tool_calls", "reasoning_content", "thinking")  # of a message, besides its content
WANTED = 4  # texts for an answer
FORM = 'a line is {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}'

PARTIAL = re.compile(r"<[^<>\s]*$")  # the beginning of a token such as <|end|>

Message = Mapping[str, Any]
Span = tuple[int, int]  # characters of a text


@dataclass(frozen=True)
class Conversation:
    """Messages and other variables of the template; place: the file and line of the conversation."""

    place: str
    messages: Sequence[Message]
    variables: Mapping[str, Any]

    @property
    def answers(self) -> list[int]:
        """Return the indices of the assistant's messages, except a leading one, which answers nothing."""
        return [i for i, message in enumerate(self.messages) if i and message["role"] == ROLE]


@dataclass(frozen=True)
class Rendered:
    """A conversation, or the part up to an answer, as the model reads it, and the characters of its answers."""

    place: str
    text: str
    answers: list[Span]


def conversation_windows(
    model: Model, path: Path, n_ctx: int, chunks: int | None = None
) -> tuple[list["Window"], tuple[str, ...]]:
    """Return the windows of a JSONL file, at most `chunks`, and remarks on what is left out.

    A conversation of more than n_ctx tokens is cut there. Raises FileError, VocabularyError for a template that is
    missing or fails, OptionError for lines that are no conversations or have no answer within n_ctx tokens.
    """
    if as_count(n_ctx, "n_ctx") < 4:
        raise OptionError(f"a window of {n_ctx} tokens; conversations need at least 4")
    template = model.chat_template
    if not isinstance(template, str):
        raise VocabularyError(f"{model.path} has no chat template", "set one with `gguftools set-metadata`")
    if chunks is not None and as_count(chunks, "chunks") < 1:
        raise OptionError(f"{chunks} chunks were asked for; at least 1 is needed")
    read = read_conversations(path)[:chunks]
    every = rendered_conversations(template, special_texts(model.metadata), read)
    if not every:
        raise VocabularyError(f"{model.path}: its chat template hides the answers of {path}; none is found")
    rendered, windows, cut = every[:chunks], list["Window"](), 0
    for each in rendered:
        window, shorter = _window(model.tokenizer, each, n_ctx)
        cut += shorter
        if window is not None:
            windows.append(window)
    if not windows:
        raise OptionError(f"{path}: no answer begins within {n_ctx} tokens", "take a larger context")
    remarks = []
    if hidden := sum(len(each.answers) for each in read) - sum(len(each.answers) for each in every):
        remarks.append(f"{path}: {hidden} answers are not found in what the chat template writes, and not measured")
    if len({each.place for each in every}) < len(every):
        remarks.append(f"{path}: the chat template rewrites earlier answers, so each has a window of its own")
    if cut:
        remarks.append(f"{path}: {cut} of {len(rendered)} windows are longer than {n_ctx} tokens, and cut there")
    if len(windows) < len(rendered):
        remarks.append(f"{path}: {len(rendered) - len(windows)} of these have no answer left, and are not measured")
    return windows, tuple(remarks)


def read_conversations(path: Path) -> list[Conversation]:
    """Return the conversations of a JSONL file. Raises FileError, OptionError for invalid lines."""
    lines = [(number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    conversations = [_conversation(f"line {number} of {path}", line) for number, line in lines]
    if not conversations:
        raise OptionError(f"{path} has no conversations", FORM)
    return conversations


def _conversation(place: str, line: str) -> Conversation:
    try:
        read = parse_json(line.removeprefix("\ufeff"))
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise FileError(f"{place} is no JSON: {reason}", FORM) from error
    given = {"messages": read} if isinstance(read, list) else read
    messages = given.get("messages") if isinstance(given, dict) else None
    if not isinstance(messages, list) or not messages:
        raise OptionError(f"{place} has no messages", FORM)
    for number, message in enumerate(messages, 1):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise OptionError(f"message {number} in {place} has no role", FORM)
        if "content" not in message and "tool_calls" not in message:
            raise OptionError(f"message {number} in {place} has no content", FORM)
    conversation = Conversation(place, messages, {"tools": given.get("tools")})
    if not conversation.answers:
        raise OptionError(f"{place} has no answer: no message of the role {ROLE!r} after another", FORM)
    return conversation


def rendered_conversations(
    template: str, specials: Mapping[str, str], conversations: Sequence[Conversation]
) -> list[Rendered]:
    """Return each conversation with its answers located; in several parts if the template rewrites earlier answers.

    Answers that cannot be located are left out, such as tool calls that the template does not render. specials:
    bos_token and so on. Raises VocabularyError, naming the conversation, if the template fails or refuses it.
    """
    common = {"documents": None, **specials}
    asked = [common | variables for each in conversations for variables in _wanted(each)]
    texts = iter(_texts(template, asked))
    rendered = list[Rendered]()
    for each in conversations:
        parts = list[Rendered]()
        for answer in each.answers:
            asking, before, whole, going_on = (next(texts) for _ in range(WANTED))
            for _, error in (asking, before, whole):
                if error is not None:
                    raise VocabularyError(f"{each.place}: the chat template {error}")
            span = _answer(each.messages[answer], *(text or "" for text, _ in (asking, before, whole, going_on)))
            if span is not None:
                parts.append(Rendered(each.place, whole[0] or "", [span]))
        rendered += _joined(parts)
    return rendered


def _wanted(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """Yield the variables of the four texts for each answer: before it with and without the generation prompt, and up
    to its end without and with it.
    """
    for answer in conversation.answers:
        for end, ask in ((answer, True), (answer, False), (answer + 1, False), (answer + 1, True)):
            yield {**conversation.variables, "messages": conversation.messages[:end], "add_generation_prompt": ask}


def _texts(template: str, asked: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str | None, str | None]]:
    """Yield each text, or the template's error."""
    for first in range(0, len(asked), AT_ONCE):
        for answer in render(template, asked[first : first + AT_ONCE], 2 * SECONDS, TODAY):
            yield answer.text, answer.error


def _joined(parts: list[Rendered]) -> list[Rendered]:
    """Return a conversation's parts as one, if the last has all answers unchanged."""
    if not parts:
        return []
    last = parts[-1]
    if all(last.text.startswith(part.text[: part.answers[0][1]]) for part in parts):
        return [Rendered(last.place, last.text, [part.answers[0] for part in parts])]
    return parts


def _answer(message: Message, asking: str, before: str, whole: str, going_on: str) -> Span | None:
    """Return the characters of the last answer in a text, with the token that ends it; None if it is not located.

    Text that the template puts between the generation prompt and the answer, such as an empty thought, is not scored; a
    message's own thought or tool call is. before, asking: the text without the answer, without and with the generation
    prompt; going_on: the text with the prompt for one more answer, which lacks what is written only at the very end of
    a conversation.
    """
    asked, content = whole.startswith(asking), _content(message)
    if not (asked or whole.startswith(before)):
        return None
    begin = _common_prefix(asking, whole)
    at = whole.find(content, begin)
    if at < 0 and not asked:  # prompt and answer may have a common beginning
        at = whole.find(content, len(before))
    if content and at >= 0 and not (asked and any(message.get(key) for key in MORE)):
        begin = at
    elif not asked:
        return None
    kept = _common_prefix(whole, going_on)
    if begin + len(content) <= kept < len(whole):
        whole = PARTIAL.sub("", whole[:kept])
    end = len(whole.rstrip())
    return (begin, end) if begin < end else None


def _content(message: Message) -> str:
    """Return the text of a message's content."""
    content = message.get("content")
    if isinstance(content, list):  # of parts
        content = next((part.get("text") for part in content if isinstance(part, dict)), None)
    return content.strip() if isinstance(content, str) else ""


def _window(tokenizer: "Tokenizer", rendered: Rendered, n_ctx: int) -> tuple["Window | None", bool]:
    """Return a text's window of at most n_ctx tokens, None if no answer begins in it; and whether answers are
    cut off.
    """
    from runtime.evaluation.windows import Window

    bos = tokenizer.bos if tokenizer.add_bos else None

    def encoded(text: str) -> list[int]:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    ids = encoded(rendered.text)
    if not ids:
        raise VocabularyError(f"{rendered.place}: the chat template writes nothing")
    spans = [[_common_prefix(ids, encoded(rendered.text[:at])) for at in span] for span in rendered.answers]
    answers = [np.arange(max(1, begin), end) for begin, end in spans]  # a token over both counts as the answer's
    wanted = np.concatenate(answers)
    targets = wanted[wanted < n_ctx]
    if not len(targets):
        return None, True
    tokens = np.array(ids, np.int64)
    return Window(tokens[: targets[-1]], targets - 1, tokens[targets]), len(targets) < len(wanted)


def _common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
