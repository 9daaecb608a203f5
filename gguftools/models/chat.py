"""A conversation with a model: turns rendered with its chat template, and a KV cache that is kept from turn to turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from archs.metadata import Metadata
from quants.errors import OptionError, VocabularyError

from ..metadata.chat_templates import rendered
from ..metadata.prompts import check_unicode

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.tokenizer import Tokenizer

    from .generation import GenerateOptions

THOUGHT, ANSWER = "a-thought-of-7041", "an-answer-of-7042"  # what a template is tried with
# How models mark reasoning where their template does not show it.
KNOWN_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)


class ConversationFullError(OptionError):
    """The context has no room for another answer."""


class ChatPiece(NamedTuple):
    """A piece of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool


class LanguageModel(Protocol):
    """What a conversation needs of a `gguftools.Model`."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def context_length(self) -> int | None: ...
    def generate(self, prompt: Any, options: GenerateOptions) -> Generation: ...


class Conversation:
    """Turns of a user and a model.

        chat = model.chat(system="Answer briefly.", temperature=0)
        for text, is_reasoning in chat.ask("Why is the sky blue?"):
            print(text, end="")

    messages: all turns so far, as chat templates take them; reasoning is under `reasoning_content`, and the template
    decides whether the model sees it again. The KV cache is kept, so that a turn reads only tokens that are new.
    stop_reason, stopped: of the latest answer. tokens_read: of its prompt, those that were not in the cache.
    """

    def __init__(self, model: LanguageModel, options: GenerateOptions, system: str | None = None) -> None:
        """Raises VocabularyError where the file has no chat template, or one that fails."""
        from runtime.prefix_cache import PrefixCache

        check_unicode(system or "")
        self.messages: list[dict[str, Any]] = []
        self.generation: Generation | None = None
        self._model, self._options, self._system = model, options, system
        self._prefix, self._turn = PrefixCache(), 0
        self._seen: tuple[str, list[int]] = "", []  # a text that the model knows, and its tokens
        self._marks = reasoning_marks(model.metadata)
        names = model.tokenizer.control_ids
        texts = [model.tokenizer.piece(token).decode("utf-8", "replace") for token in names]
        self._control = re.compile(
            "|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)"
        )
        self._marked = any(self._control.search(mark) for mark in self._marks)  # by control tokens
        self.clear()

    @property
    def system(self) -> str | None:
        """Return the system message; setting it starts a new conversation."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        check_unicode(text or "")
        self._system = text
        self.clear()

    @property
    def stop_reason(self) -> str | None:
        """Return why the latest answer ended; None before there is one."""
        return None if self.generation is None else self.generation.stop_reason

    @property
    def tokens_read(self) -> int:
        """Return the number of tokens of the latest prompt that were not in the KV cache."""
        return 0 if self.generation is None else len(self.generation.prompt) - self._prefix.reused

    def clear(self) -> None:
        """Forget all turns but the system message."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def ask(self, text: str) -> Iterator[ChatPiece]:
        """Add a user's turn, and yield the answer as it comes.

        An answer that is broken off, by an exception or by the caller, stays as far as it came; where nothing came, the
        turn is dropped. Raises ConversationFullError where the context has no room, VocabularyError for a template that
        refuses the conversation or a text that is not Unicode, and as `Model.generate`.
        """
        check_unicode(text)
        self.messages.append({"role": "user", "content": text})
        yield from self._answer()

    def regenerate(self) -> Iterator[ChatPiece]:
        """Yield another answer to the latest turn of the user. Raises OptionError where there is none."""
        kept = len(self.messages)
        while kept and self.messages[kept - 1]["role"] == "assistant":
            kept -= 1
        if not kept or self.messages[kept - 1]["role"] != "user":
            raise OptionError("there is no answer to write anew", "ask something first")
        del self.messages[kept:]
        yield from self._answer()

    def _answer(self) -> Iterator[ChatPiece]:
        spoken: list[ChatPiece] = []
        generation, finished = None, False
        try:
            prompt, ids = self._prompt()
            generation = self.generation = self._model.generate(ids, self._options_of_turn())
            self._turn += 1
            splitter = Splitter(self._marks, prompt)
            for piece in generation:
                for each in splitter.add(piece.text):
                    yield from self._shown(each, spoken)
            for each in splitter.end():
                yield from self._shown(each, spoken)
            self._seen = self._known(prompt, ids, generation)
            finished = True
        finally:
            if generation is not None and not finished:
                generation.finish()
                self._prefix.interrupt()
            self._note(spoken)

    def _shown(self, piece: ChatPiece, spoken: list[ChatPiece]) -> Iterator[ChatPiece]:
        """Yield the piece without control tokens and the space that an answer begins with."""
        text = self._control.sub("", piece.text)
        if not any(each.is_reasoning == piece.is_reasoning for each in spoken):
            text = text.lstrip()
        if text:
            spoken.append(ChatPiece(text, piece.is_reasoning))
            yield spoken[-1]

    def _note(self, spoken: Sequence[ChatPiece]) -> None:
        """Add what the model wrote to the messages; without it, drop the turn."""
        answer, thought = (
            "".join(each.text for each in spoken if each.is_reasoning is is_it) for is_it in (False, True)
        )
        if not answer and not thought:
            self.messages.pop()
            return
        message = {"role": "assistant", "content": answer.rstrip()}
        self.messages.append(message | ({"reasoning_content": thought.strip()} if thought.strip() else {}))

    def _known(self, prompt: str, ids: list[int], generation: Generation) -> tuple[str, list[int]]:
        """Return a text that may begin the next prompt, and its tokens; nothing where they differ."""
        tokens = generation.tokens[:-1] if generation.stop_reason == "end" else generation.tokens
        hidden = not self._marked and not set(tokens).isdisjoint(self._model.tokenizer.control_ids)
        if generation.stop_reason == "stop" or hidden:
            return "", []
        return prompt + generation.text, [*ids, *tokens]

    def _prompt(self) -> tuple[str, list[int]]:
        """Return the conversation up to where the answer begins, as a text and tokens."""
        from runtime.generation import prompt_ids

        tokenizer, (seen, its) = self._model.tokenizer, self._seen
        text = rendered(self._model.metadata, self.messages)
        ids = prompt_ids(tokenizer, text, rendered=True)
        if seen and text.startswith(seen):  # keep the model's own tokens where they end before a control token
            rest = tokenizer.encode(text[len(seen) :], add_special=False, parse_special=True)
            if rest and rest[0] in tokenizer.control_ids:
                ids = [*its, *rest]
        context = self._options.context or self._model.context_length
        if context is not None and len(ids) >= context:
            raise ConversationFullError(
                f"the conversation has {len(ids)} tokens; the context of {context} has no room for an answer",
                "begin a new conversation, or take a larger context",
            )
        return text, ids

    def _options_of_turn(self) -> GenerateOptions:
        """Return the options with the cache that is kept, and another seed for each turn."""
        from runtime.sampling.parameters import of_sample

        sampling = of_sample(self._options.sampling_for(self._model.metadata), self._turn)
        return replace(self._options, sampling=sampling, prefix=self._prefix, skip_special_tokens=not self._marked)


class Splitter:
    """Text in, pieces of reasoning and answer out. Reasoning comes before the answer, between two marks."""

    def __init__(self, marks: tuple[str, str], prompt: str = "") -> None:
        """prompt: what the model goes on with, which may have the first mark already."""
        self._start, self._end = marks
        place, end = prompt.rfind(self._start), prompt.rfind(self._end)
        self._is_reasoning = bool(self._start) and place >= 0 and not prompt[place + len(self._start) :].strip()
        self._is_reasoning &= place > end or end < 0
        self._is_answer = not self._start  # for sure
        self._held = ""

    def add(self, text: str) -> Iterator[ChatPiece]:
        """Yield what is certain now."""
        self._held += text
        if not self._is_reasoning and not self._is_answer:
            begun = self._held.lstrip()
            if begun.startswith(self._start):
                self._is_reasoning, self._held = True, begun[len(self._start) :]
            elif self._start.startswith(begun):
                return
            else:
                self._is_answer = True
        if self._is_reasoning:
            thought, mark, rest = self._held.partition(self._end)
            if not mark:
                kept = next((n for n in range(len(self._end) - 1, 0, -1) if thought.endswith(self._end[:n])), 0)
                thought, rest = thought[: len(thought) - kept], thought[len(thought) - kept :]
            self._held = rest
            if thought:
                yield ChatPiece(thought, True)
            if not mark:
                return
            self._is_reasoning, self._is_answer = False, True
        if self._held:
            yield ChatPiece(self._held, False)
            self._held = ""

    def end(self) -> Iterator[ChatPiece]:
        """Yield what was held back."""
        if self._held:
            yield ChatPiece(self._held, self._is_reasoning)
            self._held = ""


def reasoning_marks(metadata: Metadata) -> tuple[str, str]:
    """Return what stands before and after reasoning in this model's answers.

    It is what the template puts around the reasoning of an answer; of a template that shows none, the marks that it
    names, or else <think> and </think>. Raises VocabularyError where the file has no template.
    """
    question = {"role": "user", "content": "?"}
    before = rendered(metadata, [question])
    answer = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    try:
        whole = rendered(metadata, [question, answer], ask_for_answer=False)
    except VocabularyError:  # a template that takes questions alone
        whole = ""
    place, end = whole.find(THOUGHT), whole.find(ANSWER)
    if 0 <= place < end:
        shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        start, stop = whole[min(shared, place) : place].strip(), whole[place + len(THOUGHT) : end].strip()
        if not start:  # the prompt has it already
            start = before[:place].strip().rpartition("\n")[2]
        if start and stop:
            return start, stop
    template = str(metadata.get("tokenizer.chat_template", ""))
    return next((marks for marks in KNOWN_MARKS if marks[1] in template), KNOWN_MARKS[0])
