"""Read the prompts that a user gives: a text, standard input, or a file of several."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archs.bounded_files import PROMPTS, check_size, read_text
from archs.small_files import parse_json
from quants.arguments import wrong
from quants.errors import FileError, OptionError, VocabularyError

from ..io.naming import hint_for_absent

FORM = 'a line is "a text", {"prompt": "a text"} or {"messages": [{"role": "user", "content": "…"}]}'

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


def prompts_of(text: str | None, path: Path | None, chat: bool = False, system: str | None = None) -> list[Prompt]:
    """Return one text ("-": standard input), or a file's; chat: as messages of a user, after `system`.

    Raises FileError, OptionError for a file without prompts, and a text that is not Unicode.
    """
    prompts: list[Prompt] = [read_stdin() if text == "-" else text or ""] if path is None else _of_file(path)
    for each in prompts:
        if isinstance(each, str):
            check_unicode(each)
    return [messages(each, system) if chat and isinstance(each, str) else each for each in prompts]


def texts_of(given: Sequence[str] | None, path: Path | None, pairs: bool = False) -> list[str] | list[tuple[str, str]]:
    """Return texts ("-": standard input), a file's, or where neither is given the lines of stdin.

    pairs: each is a query and a document with a tab between. Raises FileError, OptionError for a file without texts,
    one with messages, or no pair, and VocabularyError for a text that is not Unicode.
    """
    if path is not None:
        prompts = _of_file(path)
    elif given:
        prompts = [read_stdin() if each == "-" else each for each in given]
    else:
        prompts = [line for line in read_stdin().splitlines() if line.strip()]
    if not prompts:
        raise OptionError("stdin has no texts", "one a line is expected")
    texts = []
    for each in prompts:
        if not isinstance(each, str):
            raise OptionError(f"{path} has messages", "a text is expected; `gguftools chat-template` makes it of them")
        check_unicode(each)
        texts.append(each)
    return [_pair(number, text) for number, text in enumerate(texts, 1)] if pairs else texts


def _pair(number: int, text: str) -> tuple[str, str]:
    query, tab, document = text.partition("\t")
    if not tab:
        raise OptionError(f"text {number} has no tab, so it is no pair", "QUERY, a tab, DOCUMENT is expected")
    return query, document


def messages(text: str, system: str | None = None) -> list[Message]:
    """Return a conversation in which a user says a text."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def read_stdin() -> str:
    """Read standard input to its end. Raises FileError for what is not UTF-8, or goes on beyond a file's limit."""
    read = sys.stdin.buffer.read(PROMPTS.max_bytes + 1)
    check_size("stdin", len(read), PROMPTS)
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        raise FileError(f"stdin is not UTF-8 text: byte {error.start} is {read[error.start]:#04x}") from error


def check_unicode(text: str) -> None:
    """Raise VocabularyError for lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise VocabularyError(f"the prompt is not UTF-8 text at character {error.start}") from error


def conversations(path: Path) -> list[Sequence[Message]]:
    """Read a file of JSON or JSON lines, each with messages. Raises FileError, OptionError."""
    prompts = _of_json(path, _read(path))
    if not prompts:
        raise OptionError(f"{path} has no conversations", FORM)
    if any(isinstance(each, str) for each in prompts):
        raise OptionError(f"{path} has a text without messages", FORM)
    return [each for each in prompts if not isinstance(each, str)]


def as_conversations(given: Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """Return conversations that were given as plain data. Raises OptionError for what is none."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
        raise wrong("messages", given, "a file, or a list of conversations,")
    return [_conversation(f"conversation {number}", each) for number, each in enumerate(given, 1)]


def _of_file(path: Path) -> list[Prompt]:
    text = _read(path)
    prompts: list[Prompt]
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
        prompts = _of_json(path, text)
    else:
        prompts = [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise OptionError(f"{path} has no prompts", "one a line is expected")
    return prompts


def _of_json(path: Path, text: str) -> list[Prompt]:
    """Read a file that is one prompt, perhaps over several lines, or has one in each line."""
    try:
        whole = parse_json(text)
    except ValueError:
        return _of_lines(path, text)
    return [_prompt(str(path), whole)]


def _of_lines(path: Path, text: str) -> list[Prompt]:
    lines = [(f"line {number} of {path}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    prompts = []
    for place, line in lines:
        try:
            prompts.append(_prompt(place, parse_json(line)))
        except json.JSONDecodeError as error:
            raise FileError(f"{place} is no JSON", FORM) from error
        except ValueError as error:
            raise FileError(f"{place} cannot be read: {error}", FORM) from error
    return prompts


def _prompt(place: str, read: Any) -> Prompt:
    if isinstance(read, dict) and isinstance(read.get("prompt"), str):
        read = read["prompt"]
    if isinstance(read, str):
        return read
    return _conversation(place, read.get("messages") if isinstance(read, dict) else read)


def _conversation(place: str, read: Any) -> Sequence[Message]:
    if not isinstance(read, (list, tuple)) or not read or not all(map(_is_message, read)):
        raise OptionError(f"{place} is no prompt", FORM)
    return read


def _is_message(read: Any) -> bool:
    return isinstance(read, Mapping) and isinstance(read.get("role"), str)


def _read(path: Path) -> str:
    try:
        return read_text(path, PROMPTS).removeprefix("\ufeff")
    except FileError as error:
        raise FileError(str(error), hint_for_absent(path) or error.hint) from error
