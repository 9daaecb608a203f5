"""Generate text after a prompt: one pass over the prompt, then token by token through the KV cache.

Bytes of tokens become text as soon as characters are complete. A possible beginning of a stop string is held back until
it is certain that it is none.
"""

import codecs
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from archs.vocab.ends import SUPPRESSED
from quants.errors import GgufToolsError, ModelError, OptionError
from quants.spelling import quote

from .arrays import Floats
from .kv_cache import CacheType, KVCache
from .model import RunningModel
from .prefill import Prefill, PrefillOptions
from .sampling.dry import breakers_of
from .sampling.grammar import Grammar, GrammarVocabulary
from .sampling.logprobs import TokenLogprobs, token_logprobs
from .sampling.parameters import Sampling
from .sampling.processors import bad_word_tokens
from .sampling.sampler import Sampler
from .speculation.decoding import Counts, Speculation, Written
from .tokenizer import Tokenizer

StopReason = Literal["end", "stop", "length", "context", "stopped"]


@dataclass(frozen=True)
class TextOptions:
    """How long a text may be, where it ends, and what is written of it.

    max_tokens: maximum number of tokens to generate; None for no limit but `context`, the maximum of prompt and text
    together. stop: texts that end it; include_stop_str_in_output: they are part of the text, and so is an end token.
    skip_special_tokens: leave control tokens out of the text. cache_type: the format of cached keys and values.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    context: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    cache_type: CacheType = "f32"


NO_LIMITS = TextOptions()


class Piece(NamedTuple):
    """A token, None for text held back to the end; text: what became certain with it, possibly nothing."""

    token: int | None
    text: str


class Ahead(NamedTuple):
    """A piece generated ahead, with those of other texts, before it was read; seconds: the time that it took."""

    piece: Piece
    seconds: float


class Together(Protocol):
    """The batch that a text is generated with (see `runtime.batched_generation`)."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Return the lock held while texts are generated."""

    def advance(self, generation: "Generation") -> None:
        """Generate a piece ahead, or logits, if other texts get theirs in the same pass."""

    def leave(self, generation: "Generation") -> None:
        """Drop the text until it is read again."""


class Pieces:
    """Bytes in, text out: complete characters that cannot be part of a stop string.

    stop: texts that end the text; include: they are part of it. `stopped`: the one that came.
    """

    def __init__(self, stop: Sequence[str] = (), include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None

    def add(self, piece: bytes, last: bool = False) -> str:
        """Return the text that is certain now. last: no more will come; an incomplete character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        self._held += self._decoder.decode(piece, last)
        matches = [(place, each) for each in self._stop if (place := self._held.find(each)) >= 0]
        if matches:
            place, self.stopped = min(matches, key=lambda each: (each[0], -len(each[1])))
            sure, self._held = self._held[: place + len(self.stopped) * self._include], ""
            return sure
        kept = 0 if last else max((_begun(self._held, each) for each in self._stop), default=0)
        sure = self._held[: len(self._held) - kept]
        self._held = self._held[len(sure) :]
        return sure


def _begun(text: str, stop: str) -> int:
    """Return how many of the last characters could be the beginning of a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def _check(prompt: Sequence[int], options: TextOptions) -> None:
    n = options.max_tokens
    if not len(prompt):
        raise OptionError("the prompt is empty, and this vocabulary has no token that begins a text")
    if any(not isinstance(each, str) or not each for each in options.stop):
        raise OptionError("a stop string is empty")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
        raise OptionError(f"max_tokens is {quote(n)}: a whole number, 0 or more, is needed")


class Generation:
    """A text being generated; iterate over its pieces, once.

    tokens: ids that were generated, the one that ended the text among them. text: of them all. prompt_tokens: how many
    were read first. stop_reason: "end" (a token that ends texts), "stop" (a stop string, `stopped_by`), "length"
    (max_tokens), "context" (no room left), "stopped" (from outside); None while it goes on. prefill_seconds: of the
    model with the prompt, where no other text had read it, and of what drafts with it. decode_seconds: for what came
    after the first token, which the prompt gave. logprobs: of each token, where `Sampling.logprobs` asks for them.

    All of these describe the pieces given so far, also if the text was generated ahead with others.
    """

    def __init__(
        self,
        model: RunningModel,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampler: Sampler,
        options: TextOptions = NO_LIMITS,
        *,
        prefill: Prefill | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """Start a text. prompt: token ids. prefill: of this prompt, where several texts share one. speculation: with
        the same model and sampler.

        Raises OptionError for a prompt that is empty or as long as the context, an empty stop string, an unknown type
        of cache, and where nothing would end the text.
        """
        _check(prompt, options)
        n, context = options.max_tokens, options.context
        self.model, self.tokenizer, self.sampler = model, tokenizer, sampler
        self.prompt = [int(token) for token in prompt]
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self._stop_reason: StopReason | None = None
        self.prefill_seconds = self._decode_seconds = 0.0
        self.together: Together | None = None
        self._ahead: deque[Ahead] = deque()
        # Logits after the latest token, from a pass with other texts, and the seconds that it took
        self._given: tuple[Floats | ModelError, float] | None = None
        self._error: Exception | None = None  # raised once the tokens ahead are used up
        self._room = None if context is None else context - (0 if model.encoder_decoder else len(self.prompt))
        if self._room is not None and self._room < 1:
            raise OptionError(
                f"the prompt has {len(self.prompt)} tokens; the context of {context} has no room for more",
                hint="shorten the prompt, or take a larger context",
            )
        if n is None and self._room is None:
            raise OptionError(
                "nothing says how long the text may be: the file names no context length", "give max_tokens"
            )
        self._n, self.options = n, options
        self._pieces = Pieces(options.stop, options.include_stop_str_in_output)
        self.prefill = prefill or Prefill(
            model,
            self.prompt,
            PrefillOptions(
                options.cache_type,
                more=self.max_tokens,
                back=speculation.max_tokens if speculation else 0,
                keep_states=speculation is not None and speculation.drafter.reads_states,
                layers=speculation.drafter.layers if speculation else (),
            ),
        )
        self._control = frozenset(tokenizer.control_ids)
        self._cache: KVCache | None = None
        self._cache_bytes = 0
        self._speculation = speculation
        self._ready: deque[Written] = deque()  # tokens that are sure, and not asked for
        sampler.prime(self.prompt)

    @property
    def tokens(self) -> list[int]:
        return self._tokens[: len(self._tokens) - len(self._ahead)] if self._ahead else self._tokens

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return self._logprobs[: max(0, len(self._logprobs) - len(self._ahead))] if self._ahead else self._logprobs

    @property
    def text(self) -> str:
        return "".join(self._texts[: len(self._texts) - len(self._ahead)])

    @property
    def stop_reason(self) -> StopReason | None:
        return None if self._ahead else self._stop_reason

    @property
    def decode_seconds(self) -> float:
        return self._decode_seconds - sum(each.seconds for each in self._ahead)

    @property
    def max_tokens(self) -> int | None:
        """Return the maximum number of generated tokens; None if only the context limits them."""
        return self._n if self._n is None or self._room is None else min(self._n, self._room)

    @property
    def room(self) -> int | None:
        """Return how many tokens the context has room for after the prompt; None if unknown."""
        return self._room

    @property
    def cache_bytes(self) -> int:
        """Return the memory of keys, values and states, with spare room; 0 before the prompt is read."""
        return self._cache_bytes if self._cache is None else self._cache.nbytes

    @property
    def is_drafted(self) -> bool:
        return self._speculation is not None

    @property
    def speculated(self) -> Counts | None:
        """Return the statistics of drafts; None without drafts."""
        return self._speculation.counts if self._speculation else None

    @property
    def cumulative_logprob(self) -> float:
        """Return the log-probability of the text, by `logprobs`."""
        return sum(each.logprob for each in self.logprobs)

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None]:
        """Return the log-probabilities of the prompt's tokens, None for the first; empty if not requested. Available
        with the text's first token.
        """
        return self.prefill.logprobs

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def stopped_by(self) -> str | None:
        """Return the stop string that ended the text."""
        return None if self._ahead else self._pieces.stopped

    @property
    def prefill_speed(self) -> float:
        """Return the prompt's tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_speed(self) -> float:
        """Return the generated tokens per second, without the first, which the prompt's pass gave."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds and len(self.tokens) > 1 else 0.0

    def stop(self) -> None:
        """Stop the text: the next piece is the last."""
        with self._lock:
            if self._ahead:
                self._forget_ahead()
            self._stop_reason = self._stop_reason or "stopped"

    @property
    def _lock(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.together is None else self.together.lock

    def _forget_ahead(self) -> None:
        """Discard everything generated but not yet given."""
        tokens, texts, logprobs = self.tokens, self._texts[: len(self._texts) - len(self._ahead)], self.logprobs
        self._tokens, self._texts, self._logprobs, self._decode_seconds = tokens, texts, logprobs, self.decode_seconds
        self._ahead.clear()
        self._error = self._stop_reason = None
        self._pieces = Pieces(self.options.stop, self.options.include_stop_str_in_output)
        for token in tokens:
            self._pieces.add(self._piece(token))

    def finish(self) -> str:
        """End the text. Returns the text held back, an incomplete character as U+FFFD; nothing if it has ended. The
        cache is released.
        """
        self.stop()
        if self.together is not None:
            self.together.leave(self)
        self.release()
        rest = self._pieces.add(b"", last=True)
        self._texts.append(rest)
        return rest

    def release(self) -> None:
        """Release the cache, or leave it to the next text."""
        if self._cache is not None and self.prefill.options.prefix is not None:
            self.prefill.options.prefix.leave([*self.prompt, *self._tokens])
        self._cache_bytes, self._cache, self._given = self.cache_bytes, None, None

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces as they come. Raises ModelError as `RunningModel.forward` does, after yielding all text that was
        certain before.
        """
        try:
            while (piece := self._following()) is not None:
                yield piece
        except GeneratorExit:
            if self.together is not None:
                self.together.leave(self)
            raise
        if rest := self.finish():
            yield Piece(None, rest)

    def _following(self) -> Piece | None:
        """Return the next piece; None after the last token."""
        with self._lock:
            if self.together is not None:
                self.together.advance(self)
            return self._ahead.popleft().piece if self._ahead else self._write()

    def _write(self) -> Piece | None:
        """Generate a token; None at the end."""
        if self._error is not None:
            raise self._error
        if self._stop_reason is not None or (token := self._next()) is None:
            return None
        return self._append(token)

    def _append(self, token: int) -> Piece:
        """Add a token; see whether it ends the text."""
        self._tokens.append(token)
        ended = self.sampler.ends(token)
        hidden = ended and not self.options.include_stop_str_in_output
        text = "" if hidden else self._pieces.add(self._piece(token))
        self._texts.append(text)
        if ended:
            self._stop_reason = "end"
        elif self._pieces.stopped is not None:
            self._stop_reason = "stop"
        return Piece(token, text)

    # Written by a search

    def read_prompt(self) -> tuple[KVCache, Floats]:
        """Read the prompt for a search; return its cache, and the logits of what follows, (1, vocabulary)."""
        logits = self._prefilled()
        assert self._cache is not None
        cache, self._cache = self._cache, None
        self._cache_bytes = cache.nbytes
        return cache, logits[-1:]

    def add_decode_seconds(self, seconds: float) -> None:
        """Count the time of a search."""
        self._decode_seconds += seconds

    def adopt(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """Take over the tokens of a text written by a search; they are yielded at once."""
        for token, logprob in zip(tokens, logprobs, strict=True):
            if self._stop_reason is None:
                self._logprobs.append(logprob)
                self._ahead.append(Ahead(self._append(token), 0.0))
        self._stop_reason = self._stop_reason or self._limit() or "stopped"

    # Together with other texts

    @property
    def has_ended(self) -> bool:
        """Return whether no more tokens will come."""
        return self._stop_reason is not None or self._error is not None or self._limit() is not None

    @property
    def is_ahead(self) -> bool:
        return bool(self._ahead)

    @property
    def next_input(self) -> tuple[int, KVCache] | None:
        """Return the token whose logits are needed next and the cache that it follows; None if another text is next."""
        if self.has_ended or self._cache is None or self._given is not None:
            return None
        return self._tokens[-1], self._cache

    def give(self, logits: Floats | ModelError, seconds: float) -> None:
        """Continue with the logits of `next_input`, (1, vocabulary), or with the reason why there are none."""
        self._given = logits, seconds

    def write_ahead(self) -> None:
        """Generate a token ahead. Errors are raised when it is read."""
        before, was_quiet = self._decode_seconds, self.prefill.is_quiet
        self.prefill.is_quiet = True
        try:
            piece = self._write()
        except GgufToolsError as error:
            self._error = error
            self.release()
            return
        finally:
            self.prefill.is_quiet = was_quiet
        if piece is not None:
            self._ahead.append(Ahead(piece, self._decode_seconds - before))

    def _next(self) -> int | None:
        """Return the next token; None at the end."""
        if (limit := self._limit()) is not None:
            self._stop_reason = limit
            return None
        start = time.perf_counter() - (self._given[1] if self._given else 0)
        token, logits = self._drawn() if self._speculation is None or self._cache is None else self._drafted()
        if self._tokens:
            self._decode_seconds += time.perf_counter() - start
        if self.sampler.sampling.logprobs is not None:
            self._logprobs.append(token_logprobs(logits, token, self.sampler.sampling.logprobs))
        return token

    def _limit(self) -> StopReason | None:
        """Return why the text may not be longer, or None."""
        if self._n is not None and len(self._tokens) >= self._n:
            return "length"
        return "context" if self._room is not None and len(self._tokens) >= self._room else None

    def _drawn(self) -> tuple[int, Floats]:
        """Return a token, and the logits (vocabulary,) that it was sampled from."""
        given, self._given = self._given, None
        if given is not None:
            run = given[0]
        else:
            run = self._prefilled() if self._cache is None else self.model.forward(self._tokens[-1:], self._cache)
        if isinstance(run, ModelError):
            raise run
        logits = run[-1, : known_tokens(self.model, self.tokenizer)]
        return self.sampler.draw(logits), logits

    def _drafted(self) -> tuple[int, Floats]:
        """Return a token and its logits from a cycle of drafting and verifying."""
        assert self._speculation is not None and self._cache is not None  # noqa: PT018
        if not self._ready:
            left = min(each for each in (self._n, self._room) if each is not None) - len(self._tokens)
            self._ready.extend(self._speculation.cycle([*self.prompt, *self._tokens], self._cache, left))
        token, self.sampler.state, logits = self._ready.popleft()
        return token, logits

    def _prefilled(self) -> Floats:
        if self.model.encoder_decoder is not None:
            start, cache = time.perf_counter(), self.model.new_cache(self.prefill.options.cache_type)
            self._cache = self.model.encode(self.prompt, cache)
            logits = self.model.forward([self._decoder_start()], self._cache)
            self.prefill_seconds = time.perf_counter() - start
            return logits
        self._cache, logits, self.prefill_seconds = self.prefill.read()
        if self._speculation is not None:
            start, drafter = time.perf_counter(), self._speculation.drafter
            if drafter.reads_states:
                drafter.follow(self.prefill.states)
            drafter.read(self.prompt)
            self.prefill_seconds += time.perf_counter() - start
        return logits

    def _decoder_start(self) -> int:
        metadata = self.model.metadata
        start = metadata.get(f"{metadata['general.architecture']}.decoder_start_token_id", self.tokenizer.bos)
        if start is None:
            raise ModelError("the file does not say with which token the decoder begins")
        return int(start)

    def _piece(self, token: int) -> bytes:
        return b"" if token in self._control and self.options.skip_special_tokens else self.tokenizer.piece(token)


def sampler_of(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], sampling: Sampling, grammar: Grammar | None = None
) -> Sampler:
    """Return a sampler for a tokenizer and a file: with end tokens, suppressed tokens, breakers of repetitions, and bad
    words.
    """
    breakers, plain = None, partial(tokenizer.encode, add_special=False)
    if sampling.dry_multiplier > 0 and "dry" in sampling.samplers:
        breakers = breakers_of(sampling.dry_sequence_breakers, tokenizer.pieces, plain)
    suppressed = [int(token) for token in metadata.get(SUPPRESSED, ()) if 0 <= token < tokenizer.vocab_size]
    return Sampler(
        sampling,
        end_ids=tokenizer.end_ids,
        suppressed=suppressed,
        breakers=breakers,
        grammar=grammar,
        bad_words=bad_word_tokens(sampling.bad_words, plain),
    )


def known_tokens(model: RunningModel, tokenizer: Tokenizer) -> int:
    """Return how many of a model's logits belong to tokens: a matrix may have more rows."""
    return min(tokenizer.vocab_size, model.vocabulary_size)


def grammar_vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    """Return the grammar's view of a tokenizer. Raises VocabularyError if no token ends a text."""
    return GrammarVocabulary(tokenizer.pieces, tokenizer.end_ids, tokenizer.control_ids)


def prompt_ids(tokenizer: Tokenizer, text: str, rendered: bool = False) -> list[int]:
    """Return a prompt as tokens; control tokens written in it become those tokens, and the tokens that begin a text
    come first.

    rendered: a chat template wrote it, possibly including the tokens that begin a text.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    before = list(tokenizer.around.before)
    if not before and not ids and tokenizer.bos is not None:
        before = [tokenizer.bos]
    return ids if rendered and ids[: len(before)] == before else [*before, *ids]
