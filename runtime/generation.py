"""A text that a model goes on with: one pass over the prompt, then token by token through the KV cache.

Bytes of tokens become text as soon as characters are whole. What could be the beginning of a stop string is held back
until it is sure that it is none.
"""

import codecs
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from quants.errors import ModelError, OptionError
from quants.spelling import quote

from .arrays import Floats
from .kv_cache import CacheType, KVCache
from .model import Model
from .prefill import Prefill
from .sampling.dry import breakers_of
from .sampling.grammar import Grammar, GrammarVocabulary
from .sampling.logprobs import TokenLogprobs, token_logprobs
from .sampling.parameters import Sampling
from .sampling.sampler import Sampler
from .speculation.decoding import Counts, Speculation, Written
from .tokenizer import Tokenizer

SUPPRESSED = "tokenizer.ggml.suppress_tokens"
StopReason = Literal["end", "stop", "length", "context", "stopped"]


class Piece(NamedTuple):
    """A token, None for what was held back to the end; text: what became sure with it, perhaps nothing."""

    token: int | None
    text: str


class Pieces:
    """Bytes in, text out: characters that are whole and cannot be part of a stop string.

    stop: texts that end the text, and are not part of it. `stopped`: the one that came.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None

    def add(self, piece: bytes, last: bool = False) -> str:
        """The text that is sure now. last: no more will come; half a character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        self._held += self._decoder.decode(piece, last)
        found = [(place, each) for each in self._stop if (place := self._held.find(each)) >= 0]
        if found:
            place, self.stopped = min(found, key=lambda each: (each[0], -len(each[1])))
            sure, self._held = self._held[:place], ""
            return sure
        kept = 0 if last else max((_begun(self._held, each) for each in self._stop), default=0)
        sure = self._held[: len(self._held) - kept]
        self._held = self._held[len(sure) :]
        return sure


def _begun(text: str, stop: str) -> int:
    """How many of the last characters could be the beginning of a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class Generation:
    """A text being written; iterate over its pieces, once.

    tokens: ids that were generated, the one that ended the text among them. text: of them all. prompt_tokens: how many
    were read first. stop_reason: "end" (a token that ends texts), "stop" (a stop string, `stopped_by`), "length" (n
    tokens), "context" (no room left), "stopped" (from outside); None while it goes on. prefill_seconds: of the model
    with the prompt, where no other text had read it, and of what drafts with it. decode_seconds: for what came after
    the first token, which the prompt gave. logprobs: of each token, where `Sampling.logprobs` asks for them.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, prompt: Sequence[int], sampler: Sampler, *,
        n: int | None = None, stop: Sequence[str] = (), context: int | None = None,
        special: bool = False, cache_type: CacheType = "f32", prefill: Prefill | None = None,
        speculation: Speculation | None = None,
    ) -> None:  # fmt: skip
        """prompt: token ids. n: tokens to generate at most; None for no limit but the context's, that many tokens for
        prompt and text together. special: write control tokens, too. cache_type: what keys and values are kept as.
        prefill: of this prompt, where several texts share one. speculation: with the same model and sampler.

        Raises OptionError for a prompt that is empty or as long as the context, an empty stop string, a type of cache
        that there is not, and where nothing would end the text.
        """
        if not len(prompt):
            raise OptionError("the prompt is empty, and this vocabulary has no token that begins a text")
        if any(not isinstance(each, str) or not each for each in stop):
            raise OptionError("a stop string is empty")
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
            raise OptionError(f"n is {quote(n)}: a whole number, 0 or more, is needed")
        self.model, self.tokenizer, self.sampler = model, tokenizer, sampler
        self.prompt = [int(token) for token in prompt]
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self.stop_reason: StopReason | None = None
        self.prefill_seconds = self.decode_seconds = 0.0
        self._room = None if context is None else context - (0 if model.encoder_decoder else len(self.prompt))
        if self._room is not None and self._room < 1:
            raise OptionError(
                f"the prompt has {len(self.prompt)} tokens; the context of {context} has no room for more",
                hint="shorten the prompt, or take a larger context",
            )
        if n is None and self._room is None:
            raise OptionError("nothing says how long the text may be: the file names no context length", "give n")
        self._n, self._pieces, self._special = n, Pieces(stop), special
        self.prefill = prefill or Prefill(
            model, self.prompt, cache_type, more=self.most, back=speculation.most if speculation else 0,
            keep_states=speculation is not None and speculation.drafter.reads_states,
            layers=speculation.drafter.layers if speculation else (),
        )  # fmt: skip
        self._control = frozenset(tokenizer.control_ids)
        self._cache: KVCache | None = None
        self._cache_bytes = 0
        self._speculation = speculation
        self._ready: deque[Written] = deque()  # tokens that are sure, and not asked for
        sampler.prime(self.prompt)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def most(self) -> int | None:
        """Tokens that may be generated; None where only the context is a limit."""
        return self._n if self._n is None or self._room is None else min(self._n, self._room)

    @property
    def cache_bytes(self) -> int:
        """Memory of keys, values and states, with room for tokens to come; 0 before the prompt is read."""
        return self._cache_bytes if self._cache is None else self._cache.nbytes

    @property
    def speculated(self) -> Counts | None:
        """What became of drafts; None without them."""
        return self._speculation.counts if self._speculation else None

    @property
    def cumulative_logprob(self) -> float:
        """The logarithm of the probability that the model gave the text, by `logprobs`."""
        return sum(each.logprob for each in self.logprobs)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that came."""
        return self._pieces.stopped

    @property
    def prefill_speed(self) -> float:
        """Tokens of the prompt a second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_speed(self) -> float:
        """Generated tokens a second, without the first, which the prompt's pass gave."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds and len(self.tokens) > 1 else 0.0

    def stop(self) -> None:
        """Let it end: the next piece is the last."""
        self.stop_reason = self.stop_reason or "stopped"

    def finish(self) -> str:
        """End the text here: what was held back, half a character as U+FFFD; nothing if it has ended.

        The cache is let go.
        """
        self.stop()
        self._cache_bytes, self._cache = self.cache_bytes, None
        rest = self._pieces.add(b"", last=True)
        self._texts.append(rest)
        return rest

    def __iter__(self) -> Iterator[Piece]:
        """Pieces as they come. Raises ModelError as `Model.forward` does; what is sure till then was given before."""
        while self.stop_reason is None and (token := self._next()) is not None:
            self.tokens.append(token)
            ended = self.sampler.ends(token)
            text = "" if ended else self._pieces.add(self._piece(token))
            self._texts.append(text)
            if ended:
                self.stop_reason = "end"
            elif self.stopped_by is not None:
                self.stop_reason = "stop"
            yield Piece(token, text)
        if rest := self.finish():
            yield Piece(None, rest)

    def _next(self) -> int | None:
        """The next token; None where there is to be none."""
        if self._n is not None and len(self.tokens) >= self._n:
            self.stop_reason = "length"
            return None
        if self._room is not None and len(self.tokens) >= self._room:
            self.stop_reason = "context"
            return None
        start = time.perf_counter()
        token, logits = self._drawn() if self._speculation is None or self._cache is None else self._drafted()
        if self.tokens:
            self.decode_seconds += time.perf_counter() - start
        if self.sampler.sampling.logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token, self.sampler.sampling.logprobs))
        return token

    def _drawn(self) -> tuple[int, Floats]:
        """A token, and the logits (vocabulary,) that it was drawn from."""
        run = self._prefilled() if self._cache is None else self.model.forward(self.tokens[-1:], self._cache)
        logits = run[-1, : known_tokens(self.model, self.tokenizer)]
        return self.sampler.draw(logits), logits

    def _drafted(self) -> tuple[int, Floats]:
        """The same of the tokens that a cycle of drafting and checking gave."""
        assert self._speculation is not None and self._cache is not None  # noqa: PT018
        if not self._ready:
            left = min(each for each in (self._n, self._room) if each is not None) - len(self.tokens)
            self._ready.extend(self._speculation.cycle([*self.prompt, *self.tokens], self._cache, left))
        token, self.sampler.state, logits = self._ready.popleft()
        return token, logits

    def _prefilled(self) -> Floats:
        if self.model.encoder_decoder is not None:
            start, cache = time.perf_counter(), self.model.new_cache(self.prefill.cache_type)
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
        return b"" if token in self._control and not self._special else self.tokenizer.piece(token)


def sampler_of(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], sampling: Sampling, grammar: Grammar | None = None
) -> Sampler:
    """A sampler that knows which tokens end a text, which the file suppresses, and which break repetitions."""
    breakers = None
    if sampling.dry_multiplier > 0 and "dry" in sampling.samplers:
        plain = partial(tokenizer.encode, add_special=False)
        breakers = breakers_of(sampling.dry_sequence_breakers, tokenizer.pieces, plain)
    suppressed = [int(token) for token in metadata.get(SUPPRESSED, ()) if 0 <= token < tokenizer.vocab_size]
    return Sampler(sampling, end_ids=tokenizer.end_ids, suppressed=suppressed, breakers=breakers, grammar=grammar)


def known_tokens(model: Model, tokenizer: Tokenizer) -> int:
    """How many of a model's logits are of tokens: a matrix may have rows that are none."""
    return min(tokenizer.vocab_size, model.vocabulary_size)


def grammar_vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    """What grammars see of a tokenizer. Raises VocabularyError where no token ends a text."""
    return GrammarVocabulary(tokenizer.pieces, tokenizer.end_ids, tokenizer.control_ids)


def prompt_ids(tokenizer: Tokenizer, text: str, rendered: bool = False) -> list[int]:
    """A prompt as tokens; control tokens written in it are those tokens, and what begins texts comes first.

    rendered: a chat template wrote it, perhaps with what begins texts.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    before = list(tokenizer.around.before)
    if not before and not ids and tokenizer.bos is not None:
        before = [tokenizer.bos]
    return ids if rendered and ids[: len(before)] == before else [*before, *ids]
