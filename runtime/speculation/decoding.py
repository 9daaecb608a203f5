"""The loop: a draft is made, the model runs all of it in one pass, and the accepted tokens are appended to the text.

One pass gives the distribution after every drafted token. So a cycle gives one token more than it accepts: at the first
rejection its distribution gives another token; without a rejection, there is one for the token after the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from quants.errors import OptionError

from ..arrays import Floats
from ..kv_cache import KVCache
from ..model import RunningModel
from ..sampling.sampler import Sampler, State
from .acceptance import Rule, verify, verify_typically
from .assistants import Assistant, AssistantDrafter
from .blocks import BlockDrafter, BlockWriter
from .drafts import Drafter, Drawing, LookupDrafter, ModelDrafter, StatesDrafter
from .parameters import MAX_BY_LOOKUP, MAX_BY_MODEL, Drafting
from .readers import OwnLayer, Reader
from .trees import TEXT, DraftTree


class Written(NamedTuple):
    """A token, the sampler's state after it, and the logits that it was drawn from, (vocabulary,)."""

    token: int
    state: State
    logits: Floats


@dataclass
class Counts:
    """Statistics of drafts. cycles: passes of the model, including those without a draft. drafted, accepted: tokens;
    for each place of a draft, how often it was drafted, and accepted.
    """

    cycles: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    @property
    def tokens_per_cycle(self) -> float:
        """Return the tokens per pass of the model."""
        return (self.accepted + self.cycles) / self.cycles if self.cycles else 0.0

    def add(self, draft: DraftTree, accepted: int) -> None:
        """Count a cycle."""
        depth = max(draft.depths, default=-1) + 1
        self.cycles, self.drafted, self.accepted = self.cycles + 1, self.drafted + len(draft), self.accepted + accepted
        for counts, count in ((self.drafted_per_position, depth), (self.accepted_per_position, accepted)):
            counts += [0] * (depth - len(counts))
            counts[:count] = [each + 1 for each in counts[:count]]


class Speculation:
    """Speculative decoding. counts: its statistics."""

    def __init__(
        self,
        model: RunningModel,
        sampler: Sampler,
        drafter: Drafter,
        max_tokens: int,
        vocabulary: int,
        rule: Rule = verify,
    ) -> None:
        """Set up decoding. max_tokens: maximum depth of a draft. vocabulary: how many of the model's logits belong to
        tokens.
        """
        self.model, self.sampler, self.drafter, self.max_tokens, self.rule = model, sampler, drafter, max_tokens, rule
        self.vocabulary = vocabulary
        self.counts = Counts()

    def cycle(self, text: Sequence[int], cache: KVCache, max_tokens: int) -> list[Written]:
        """Return at least one token and at most `max_tokens` that continue a text.

        text: prompt and text, all in the cache but the last token. The cache then lacks the last of these tokens.
        Raises ModelError as `RunningModel.forward` does.
        """
        before = cache.length
        room = self.model.draftable(before, min(self.max_tokens, max_tokens - 1))
        if isinstance(self.drafter, AssistantDrafter):
            self.drafter.look(cache)
        draft = self.drafter.propose(text, room, self.sampler.state) if room > 0 else DraftTree()
        logits, states = self._run(text[-1], draft, cache)
        written, path = self._walk(draft, logits)
        if draft.is_chain:
            cache.truncate(before + 1 + len(path))
        else:
            cache.keep_rows(before + 1, np.array(path, np.int64))
        if states is not None:
            self.drafter.follow(states[[0, *(place + 1 for place in path)]])
        self.counts.add(draft, len(path))
        return written

    def _run(self, last: int, draft: DraftTree, cache: KVCache) -> tuple[Floats, Floats | None]:
        """Return logits after the text's last token and each drafted one; and the model's states, if needed."""
        tokens = [last, *draft.tokens]
        if draft.is_chain and not self.drafter.reads_states:
            return self.model.forward(tokens, cache), None
        parents = None if draft.is_chain else (TEXT, *(parent + 1 for parent in draft.parents))
        return self.model.forward_with_states(tokens, self.drafter.layers, cache, parents)

    def _walk(self, draft: DraftTree, logits: Floats) -> tuple[list[Written], list[int]]:
        """Return the tokens to append, and which drafted ones are accepted."""
        written: list[Written] = []
        path: list[int] = []
        state, at = self.sampler.state, TEXT
        while True:
            row = logits[at + 1, : self.vocabulary]
            p = self.sampler.probabilities(row, state)
            children = draft.children(at)
            verdict = self.rule(p, [draft.candidates[child] for child in children], self.sampler.random.random)
            state = self.sampler.after(state, verdict.token, p)
            written.append(Written(verdict.token, state, row))
            if verdict.candidate is None or self.sampler.ends(verdict.token):
                return written, path
            at = children[verdict.candidate]
            path.append(at)


def speculation_of(
    model: RunningModel,
    sampler: Sampler,
    by: RunningModel | Reader | Assistant | BlockWriter | Literal["lookup", "mtp"],
    vocabulary: int,
    drafting: Drafting | None = None,
    context: int | None = None,
) -> Speculation:
    """Return speculative decoding.

    by: a smaller model of the same vocabulary, "lookup" for n-grams of the text, "mtp" for the model's own MTP layer,
    or another reader of its states or keys. vocabulary: how many of the model's logits belong to tokens. context: the
    smaller model's context length.

    Raises OptionError for unsuitable drafters, for the model itself, and for several candidates a place if a model
    can't verify them; ModelError for a model without an MTP layer.
    """
    drafting = drafting or Drafting()
    if model.device is not None and by not in ("lookup", "mtp") and not isinstance(by, RunningModel):
        hint = "draft with a smaller model, by lookup or with the model's own MTP layer, or leave the device out"
        raise OptionError("drafts of a file that reads a model's states are computed on the processor alone", hint)
    if by is model:
        raise OptionError("the draft is the model itself", "a smaller one is needed, or this one in a smaller format")
    if drafting.children > 1 and by == "lookup":
        raise OptionError("what is looked up in the text is one draft", "leave `children` out")
    if drafting.children > 1 and not model.trees:
        raise OptionError(f"a model of {model.architecture.name} checks one draft at a time", "leave `children` out")
    if model.encoder_decoder is not None and by != "lookup":
        raise OptionError(f"{model.architecture.name} has an encoder: its text is drafted by prompt lookup alone")
    drawing = Drawing(sampler, drafting, vocabulary)
    drafter: Drafter
    if by == "lookup":
        drafter = LookupDrafter()
    elif isinstance(by, RunningModel):
        drafter = ModelDrafter(by, drawing, context)
    elif isinstance(by, Assistant):
        drafter = AssistantDrafter(by, drawing)
    elif isinstance(by, BlockWriter):
        drafter = BlockDrafter(by, drawing)
    else:
        drafter = StatesDrafter(OwnLayer(model) if by == "mtp" else by, drawing)
    max_tokens = drafting.max_tokens or (MAX_BY_LOOKUP if by == "lookup" else MAX_BY_MODEL)
    rule = verify_typically if drafting.typical else verify
    return Speculation(model, sampler, drafter, max_tokens, vocabulary, rule)
