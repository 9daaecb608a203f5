"""Take a chat template apart into the texts around each message, where it has no more than those.

A template is a program. What it makes of a few conversations shows whether it only puts texts around messages: then
other programs' templates, such as Ollama's in Go, can say the same. One that also thinks, calls tools or counts is
still taken apart if plain conversations come out equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archs.metadata import Metadata
from quants.errors import VocabularyError

from ...metadata.chat_templates import CHAT_TEMPLATE, render, special_texts

NOW, LATER = "2026-01-02T12:00:00", "2027-11-13T21:34:56"  # a template that says the date differs
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
WORDS = {SYSTEM: "Sassafras", USER: "Umbrella", ASSISTANT: "Aardvark"}  # what no template says
CONVERSATIONS = (
    (USER,),
    (USER, ASSISTANT, USER),
    (SYSTEM, USER),
    (SYSTEM, USER, ASSISTANT, USER),
    (USER, ASSISTANT, USER, ASSISTANT, USER),
    (SYSTEM, USER, ASSISTANT, USER, ASSISTANT, USER),
)


@dataclass(frozen=True)
class Around:
    """The texts in front of a message and after it."""

    before: str
    after: str


@dataclass(frozen=True)
class Turns:
    """What a template puts around messages.

    system: None if it takes no system message. default_system: the system message that it adds where there is none.
    system_in_user: a system message stands at the beginning of the first user's, in front of `system.after`. opening:
    what stands where an answer begins, if it is not what stands in front of earlier answers.
    """

    user: Around
    assistant: Around
    system: Around | None = None
    default_system: str | None = None
    system_in_user: bool = False
    opening: str | None = None

    @property
    def to_answer(self) -> str:
        """Return the text at which an answer begins."""
        return self.assistant.before if self.opening is None else self.opening

    def text(self, roles: Sequence[str], words: Mapping[str, Sequence[str]]) -> str:
        """Return a conversation up to where an answer begins. words: texts of each role's messages, in order."""
        around = {USER: self.user, ASSISTANT: self.assistant, SYSTEM: self.system or Around("", "")}
        numbers, parts = dict.fromkeys(around, 0), []
        if self.system is not None and self.default_system is not None and SYSTEM not in roles:
            parts.append(self.system.before + self.default_system + self.system.after)
        for place, role in enumerate(roles):
            opened = self.system_in_user and place > 0 and roles[place - 1] == SYSTEM
            parts.append("" if opened else around[role].before)
            parts.append(words[role][numbers[role]] + around[role].after)
            numbers[role] += 1
        return "".join(parts) + self.to_answer


def turns_of(metadata: Metadata, bos: str = "") -> Turns | None:
    """Return the texts that a file's chat template puts around messages; None where it does more than that.

    bos: what the vocabulary puts in front of every text, which is left out. Raises VocabularyError for a file without a
    template, or whose template fails.
    """
    template = metadata.get(CHAT_TEMPLATE)
    if not isinstance(template, str):
        raise VocabularyError("the file has no chat template", "set one with `gguftools set-metadata`")
    words = {role: [f"{word}{i}" for i in range(4)] for role, word in WORDS.items()}
    texts = _rendered(template, metadata, words, bos)
    if texts != _rendered(template, metadata, words, bos, LATER):
        return None
    candidates = list(_candidates(texts, words))
    question = (texts[USER,] or "").rpartition(words[USER][0])[2]
    for turns in (*candidates, *(_opened(each, question) for each in candidates)):
        known = {roles: text for roles, text in texts.items() if turns.system is not None or SYSTEM not in roles}
        if all(turns.text(roles, words) == text for roles, text in known.items()):
            return turns
    return None


def _rendered(
    template: str, metadata: Metadata, words: Mapping[str, Sequence[str]], bos: str, now: str = NOW
) -> dict[tuple[str, ...], str | None]:
    """Return what the template makes of CONVERSATIONS; None of those that it refuses."""
    common = {"tools": None, "documents": None, "add_generation_prompt": True, **special_texts(metadata)}
    given = [common | {"messages": _messages(roles, words)} for roles in CONVERSATIONS]
    texts = [each.text for each in render(template, given, now=now)]
    if texts[0] is None:
        raise VocabularyError("the chat template fails for a single question")
    return {roles: text and text.removeprefix(bos) for roles, text in zip(CONVERSATIONS, texts, strict=True)}


def _messages(roles: Sequence[str], words: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    numbers, messages = dict.fromkeys(WORDS, 0), []
    for role in roles:
        messages.append({"role": role, "content": words[role][numbers[role]]})
        numbers[role] += 1
    return messages


def _candidates(texts: Mapping[tuple[str, ...], str | None], words: Mapping[str, Sequence[str]]) -> Iterator[Turns]:
    """Yield what the texts around messages could be, by three of the conversations; without a system message last."""
    user, answer, later, system = words[USER][0], words[ASSISTANT][0], words[USER][1], words[SYSTEM][0]
    long, with_system = texts[USER, ASSISTANT, USER], texts[SYSTEM, USER]
    if long is None or not _in_order(long, user, answer, later):
        return
    begin, rest = long.split(user, 1)
    to_answer, rest = rest.split(answer, 1)
    to_user = rest.split(later, 1)[0]
    if with_system is not None and _in_order(with_system, system, user):
        before, rest = with_system.split(system, 1)
        between = rest.split(user, 1)[0]
        after_answer, before_user = _split(to_user, before)
        after_user, before_answer = _split(to_answer, before, after_answer)
        around = Around(before_user, after_user), Around(before_answer, after_answer)
        after_system = between.removesuffix(before_user)
        yield Turns(*around, Around(before, after_system))
        ending = after_system + before_user
        if begin.startswith(before) and begin.endswith(ending):
            yield Turns(*around, Around(before, after_system), begin[len(before) : len(begin) - len(ending)])
        after_answer = to_user.removesuffix(begin)
        after_user = _split(to_answer, begin, after_answer)[0]
        around = Around(begin, after_user), Around(to_answer[len(after_user) :], after_answer)
        yield Turns(*around, Around(before, between), system_in_user=True)
    after_answer = to_user.removesuffix(begin)
    after_user = _split(to_answer, begin, after_answer)[0]
    yield Turns(Around(begin, after_user), Around(to_answer[len(after_user) :], after_answer))


def _opened(turns: Turns, question: str) -> Turns:
    """Return the turns with what follows a last question as it is. question: the text after one."""
    between = turns.user.after + turns.assistant.before
    shared = _common_beginning(between, question)
    user, assistant = (Around(turns.user.before, between[:shared]), Around(between[shared:], turns.assistant.after))
    return replace(turns, user=user, assistant=assistant, opening=question[shared:])


def _split(text: str, opening: str, ending: str = "") -> tuple[str, str]:
    """Split a text between two messages into the end of one and the beginning of the next, which begins as `opening`
    does. ending: what other messages end with, for one that begins with something else.
    """
    shared = [_common_beginning(text[place:], opening) for place in range(len(text))]
    place = shared.index(max(shared)) if any(shared) else len(ending if text.startswith(ending) else text)
    return text[:place], text[place:]


def _in_order(text: str, *words: str) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places) and all(text.count(word) == 1 for word in words)


def _common_beginning(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
