"""Check generated text: compared with the original's predictions, for degeneration, and where it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from quants.errors import ModelError
from quants.spelling import quote
from runtime.arrays import Doubles, Floats
from runtime.batched_generation import written_together
from runtime.generation import Generation, prompt_ids
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.tokenizer import tokenizer_from_metadata

from ...metadata.chat_templates import QUESTION, rendered
from ...models.model import Model
from ...models.running import running_model
from .result import Check, judged, skipped
from .texts import PASSAGES, PROMPTS, passage

PREDICTIONS, REPETITION, END, SPARSITY = "predictions", "repetition", "end of text", "predictor"
PASSAGE = 128  # tokens of each passage that predictions are compared on
SPARSE_PASSAGE, MIN_SPARSE_AGREEMENT = 64, 0.5  # the same with a predictor, and the share of top tokens that stay
MAX_KL, MIN_AGREEMENT = 2.0, 0.25  # limits for any file with the original's weights
MAX_KL_EXACT = 0.01  # of a file whose matrices all have 16 bits or more
FLOATS = ("F64", "F32", "F16", "BF16")
IMPROBABLE = 1e-4
RUN = 16  # repetitions of one token up to the end, or half of a text: "GGGG"
PERIOD, REPEATED = 8, 48  # a loop: so many last tokens repeat with a period of at most PERIOD
BROKEN = 0.05  # share of characters that are U+FFFD
ANSWER = 128  # tokens within which an answer should end
SEED = 1
BEGINNING, LESS_LIKELY = (
    8,
    1.0,
)  # tokens of a degenerate text to score; nats a token by which the original may find them less likely


class GeneratedText(NamedTuple):
    """A prompt's ids, the generated ids and their text, and why it stopped."""

    prompt: list[int]
    tokens: list[int]
    text: str
    reason: str


@dataclass(frozen=True)
class FirstDifference:
    """The first token at which the original would choose otherwise: its index, the original's token, the gap between
    both logits, and the original's probability of the file's token.
    """

    after: int
    theirs: int
    gap: float
    probability: float


def generate_text(
    model: Model, prompt: str | list[int], n: int, threads: int | None, sampling: Sampling
) -> GeneratedText:
    return _finished(model.generate(prompt, sampling, max_tokens=n, threads=threads))


def _finished(generation: Generation) -> GeneratedText:
    for _ in generation:
        pass
    return GeneratedText(generation.prompt, generation.tokens, generation.text, generation.stop_reason or "stopped")


def greedy_texts(model: Model, n: int, threads: int | None) -> list[GeneratedText]:
    greedy = Sampling(temperature=0)
    texts = (model.generate(each, greedy, max_tokens=_fitting(model, each, n), threads=threads) for each in PROMPTS)
    return [_finished(each) for each in written_together(texts)]


def _fitting(model: Model, prompt: str, n: int) -> int:
    """Return the number of tokens that fit into the context, at most n."""
    room = n if model.context_length is None else model.context_length - len(prompt_ids(model.tokenizer, prompt))
    return max(1, min(n, room))


def passage_ids(model: Model, name: str, length: int) -> list[int]:
    """Return the first tokens of a passage, as many as the context has room for."""
    return prompt_ids(model.tokenizer, passage(name)[: 8 * length])[: min(length, model.context_length or length)]


def check_predictions(model: Model, original: Model, texts: Sequence[GeneratedText], threads: int | None) -> Check:
    """Check the KL divergence from the original's predictions on passages, and where greedy texts differ."""
    ours, theirs = running_model(model, threads), running_model(original, threads)
    if not ours.architecture.block.causal and ours.encoder_decoder is None:
        return skipped(PREDICTIONS, "an encoder predicts no token")
    size = min(ours.vocabulary_size, theirs.vocabulary_size, model.tokenizer.vocab_size)
    kl, same = list[Doubles](), list[Floats]()
    for name in PASSAGES if ours.encoder_decoder is None else ():
        ids = passage_ids(model, name, PASSAGE)
        a, b = (_log_p(each.logits(ids)[:, :size]) for each in (theirs, ours))
        kl.append(kl_divergences(a, b))
        same.append((a.argmax(axis=1) == b.argmax(axis=1)).astype(np.float32))
    differences = [first_difference(theirs, size, each) for each in texts]
    lines = [_comparison_line(model, text, where) for text, where in zip(texts, differences, strict=True)]
    lost = [where for where in differences if where is not None]
    pairs = zip(texts, differences, strict=True)
    together = sum(len(text.tokens) if where is None else where.after for text, where in pairs)
    total = sum(len(text.tokens) for text in texts)
    figures: dict[str, Any] = {
        "mean_kl": None,
        "same_top": None,
        "greedy_same": together,
        "greedy_tokens": total,
        "parted_after": [None if where is None else where.after for where in differences],
    }
    seen = f"greedy texts: {together} of {total} tokens until they part"
    faults = []
    if kl:
        mean, agreement = float(np.concatenate(kl).mean()), float(np.concatenate(same).mean())
        figures |= {"mean_kl": mean, "same_top": agreement}
        seen = f"mean KL {mean:.4g}, same top token {agreement:.1%}; {seen}"
        exact = all(len(tensor.shape) < 2 or tensor.format.name in FLOATS for tensor in model.tensors.values())
        if not mean <= (MAX_KL_EXACT if exact else MAX_KL):
            limit = f"{MAX_KL_EXACT} for weights that are not quantized" if exact else f"{MAX_KL:g}"
            faults.append(f"{seen}; the KL divergence of a sound file is below {limit}")
        elif agreement < MIN_AGREEMENT:
            faults.append(f"{seen}; a sound file's top token is the original's more often")
    wild = [where for where in lost if where.probability < IMPROBABLE]
    if len(wild) * 2 > len(texts):
        faults.append(
            f"{len(wild)} of {len(texts)} greedy texts continue with tokens that are nearly impossible to the original"
        )
    return judged(PREDICTIONS, faults, seen, lines, **figures)


def kl_divergences(a: Doubles, b: Doubles) -> Doubles:
    """Return the KL divergence of b from a, both log(p) (rows, tokens), in nats; tokens with p(a) = 0 count nothing."""
    there = np.isfinite(a)
    kl: Doubles = np.where(there, np.exp(a) * (np.where(there, a, 0) - np.where(there, b, 0)), 0).sum(axis=1)
    return kl


def _log_p(logits: Floats) -> Doubles:
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values


def first_difference(original: RunningModel, size: int, text: GeneratedText) -> FirstDifference | None:
    """Return the first token where the original would have chosen another; None if there is none."""
    if not text.tokens:
        return None
    logits = _following(original, text)[:, :size]
    log_p = _log_p(logits)
    for i, (token, row) in enumerate(zip(text.tokens, logits, strict=True)):
        theirs = int(row.argmax())
        if theirs != token:
            return FirstDifference(i, theirs, float(row[theirs] - row[token]), float(np.exp(log_p[i, token])))
    return None


def _following(model: RunningModel, text: GeneratedText) -> Floats:
    """Return the logits of each generated token."""
    if model.encoder_decoder is not None:
        return model.logits(text.prompt, [decoder_start(model.metadata), *text.tokens[:-1]])
    ids = [*text.prompt, *text.tokens[:-1]]
    return model.forward(ids, first=len(text.prompt) - 1)


def decoder_start(metadata: Mapping[str, Any]) -> int:
    """Return the token that a decoder begins with, as generation does: without a key that of the vocabulary's bos.

    Raises ModelError if there is neither.
    """
    start = metadata.get(f"{metadata['general.architecture']}.decoder_start_token_id")
    start = tokenizer_from_metadata(metadata).bos if start is None else start
    if start is None:
        raise ModelError("the file does not say with which token the decoder begins")
    return int(start)


def _comparison_line(model: Model, text: GeneratedText, where: FirstDifference | None) -> str:
    begins = quote(model.tokenizer.decode(text.prompt, skip_special=True)[:40])
    if where is None:
        return f"{begins}: all {len(text.tokens)} tokens are the original's"
    ours, theirs = (quote(model.tokenizer.text(number)) for number in (text.tokens[where.after], where.theirs))
    odds = f"its logit is {where.gap:.3g} higher there, ours has {where.probability:.2g} by it"
    return f"{begins}: after {where.after} tokens {ours}, the original {theirs} ({odds})"


def degeneration(tokens: Sequence[int], text: str) -> str | None:
    """Return what is wrong with a degenerate text; None for a usual one.

    Checked in this order: empty, one token repeated, replacement characters, a short loop at the end.
    """
    if not tokens or not text.strip():
        return "an empty text"
    runs = [len(list(group)) for _, group in groupby(tokens)]
    if max(runs) >= max(RUN, len(tokens) // 2) or runs[-1] >= RUN:
        return f"one token {max(runs)} times in a row"
    if text.count("\ufffd") > max(2, BROKEN * len(text)):
        return f"{text.count(chr(0xFFFD))} of {len(text)} characters are no characters (U+FFFD)"
    period = loop_period(tokens)
    return None if period is None else f"the same {period} tokens again and again"


def loop_period(tokens: Sequence[int]) -> int | None:
    """Return the shortest period, at most PERIOD, with which the last REPEATED tokens repeat; None for none."""
    if len(tokens) < REPEATED:
        return None
    end = list(tokens[-REPEATED:])
    return next((p for p in range(1, PERIOD + 1) if end[p:] == end[:-p]), None)


def check_repetition(
    model: Model, original: Model | None, texts: Sequence[GeneratedText], n: int, threads: int | None
) -> Check:
    """Check greedy texts and a sampled one for degeneration; loops of greedy texts are only noted, as models
    have them.
    """
    faults, lines = list[str](), list[str]()
    for text in texts:
        fault = degeneration(text.tokens, text.text)
        if fault is None:
            continue
        line = f"{quote(model.tokenizer.decode(text.prompt, skip_special=True)[:40])}: {fault}: {quote(text.text[:60])}"
        if _is_the_originals(model, original, text, threads):
            lines.append(f"{line}, as the original's")
        else:
            (lines if fault.startswith("the same") else faults).append(line)
    prompt = PROMPTS[0]
    sampled = generate_text(model, prompt, _fitting(model, prompt, max(n, REPEATED)), threads, Sampling(seed=SEED))
    if fault := degeneration(sampled.tokens, sampled.text):
        line = f"sampled, seed {SEED}: {fault}: {quote(sampled.text[:60])}"
        theirs = _is_the_originals(model, original, sampled, threads)
        (lines if theirs else faults).append(f"{line}, as the original's" if theirs else line)
    count = sum(len(each.tokens) for each in (*texts, sampled))
    return judged(REPETITION, faults, f"{len(texts)} greedy texts and a sampled one, {count} tokens", lines)


def _is_the_originals(model: Model, original: Model | None, text: GeneratedText, threads: int | None) -> bool:
    """Return whether the original finds the beginning about as likely; later it would follow any loop that has
    begun.
    """
    if original is None or not text.tokens:
        return False
    begun = text._replace(tokens=text.tokens[:BEGINNING])
    size, likely = min(each.tokenizer.vocab_size for each in (model, original)), list[float]()
    for each in (model, original):
        log_p = _log_p(_following(running_model(each, threads), begun)[:, :size])
        likely.append(float(log_p[np.arange(len(begun.tokens)), begun.tokens].mean()))
    return likely[1] >= likely[0] - LESS_LIKELY


def check_end(model: Model, threads: int | None) -> Check:
    """Check that the token which ends a turn in the template ends a text, and whether an answer ends."""
    if model.chat_template is None:
        return skipped(END, "without a chat template there is no answer that should end")
    tokenizer = model.tokenizer
    messages = [QUESTION, {"role": "assistant", "content": "4"}]
    text = rendered(model.metadata, messages, ask_for_answer=False)
    after = tokenizer.encode(text[text.rfind("4") + 1 :], add_special=False, parse_special=True)
    controls = set(tokenizer.control_ids) | set(tokenizer.end_ids)
    end = next((number for number in after if number in controls), None)
    faults, lines = list[str](), list[str]()
    if end is None:
        lines.append("the template writes no special token after an answer")
    elif end not in tokenizer.end_ids:
        ends = ", ".join(quote(tokenizer.text(number)) for number in tokenizer.end_ids) or "none"
        faults.append(f"an answer ends with {end} {quote(tokenizer.text(end))}; a text of this file ends at {ends}")
    else:
        lines.append(f"an answer ends with {end} {quote(tokenizer.text(end))}, at which a text ends")
    ids = prompt_ids(tokenizer, rendered(model.metadata, [QUESTION]), rendered=True)
    room = ANSWER if model.context_length is None else min(ANSWER, model.context_length - len(ids))
    if room < 1:
        return judged(END, faults, "the context has no room for an answer", lines)
    answer = generate_text(model, ids, room, threads, Sampling(temperature=0))
    seen = f"an answer ended after {len(answer.tokens)} tokens"
    if answer.reason != "end":
        seen = f"not reached within {room} tokens; a model that was not taught to answer need not"
    return judged(END, faults, seen, lines, reached=answer.reason == "end", tokens=len(answer.tokens))


def check_sparsity(model: Model, threads: int | None) -> Check:
    """Check that the file runs with its predictor, skips neurons, and mostly predicts the same tokens as without."""
    if "blk.0.fc1.weight" not in model.tensors:
        return skipped(SPARSITY, "the file has no predictor")
    sparse = RunningModel(model.metadata, model.tensors, threads=threads)
    counted, same = sparse.use_predictor(), list[bool]()
    for name in PASSAGES:
        ids = passage_ids(model, name, SPARSE_PASSAGE)
        pairs = zip(running_model(model, threads).logits(ids), sparse.logits(ids), strict=True)
        same += [bool(dense.argmax() == other.argmax()) for dense, other in pairs]
    agreement = float(np.mean(same))
    seen = f"{counted.skipped:.1%} of the neurons are left out; the same top token {agreement:.1%}"
    faults = []
    if counted.skipped == 0:
        faults.append(f"the predictor leaves no neuron out, of {counted.neurons:,}")
    if agreement < MIN_SPARSE_AGREEMENT:
        faults.append(f"{seen}; the predictor leaves out what matters")
    return judged(SPARSITY, faults, seen, skipped=counted.skipped, same_top=agreement)
