"""Compare chat template, token ids and special tokens of a file with those of its original."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from archs.schema import SPECIAL_TOKENS
from quants.spelling import quote

from ...metadata.chat_templates import SAMPLES, Answer, remarks, render, special_texts
from ...models.model import Model
from ..templates import TODAY
from .checkpoint import Original
from .result import Check, judged, skipped
from .source_tokenizer import SENTENCEPIECE
from .texts import token_texts

TEMPLATE, TOKENS, SPECIAL = "chat template", "token ids", "special tokens"
MAX_SPECIAL = 24  # of a vocabulary's control tokens: that many are written in texts
ROLES = ("bos", "eos", "unk", "pad", "sep", "mask")
NEEDED = ("bos", "eos")


def check_template(model: Model, original: Original | None) -> Check:
    """Check that usual conversations render to the original's texts; without an original, that they render."""
    ours, theirs = model.chat_template, None if original is None else original.template
    if ours is None and theirs is None:
        return skipped(TEMPLATE, "the file has none" + (", nor has the original" if original else ""))
    if ours is None:
        return judged(TEMPLATE, ["the file has no chat template; the original has one"], "")
    if original is not None and theirs is None:
        return judged(TEMPLATE, ["the file has a chat template; the original has none"], "")
    answers = _rendered(ours, special_texts(model.metadata))
    if original is None or theirs is None:
        return _check_without_original(model, answers)
    wanted = _rendered(theirs, original.special_texts)
    differing = [name for name, answer in answers.items() if _is_other(answer, wanted[name])]
    if not differing:
        return judged(TEMPLATE, [], f"{len(answers)} conversations become the original's texts")
    first = differing[0]
    fault = f"{len(differing)} of {len(answers)} conversations become other texts than the original's; {first}:"
    both = _lines(wanted[first]), _lines(answers[first])
    lines = list(difflib.unified_diff(*both, "original", "file", lineterm="", n=1))
    return judged(TEMPLATE, [fault], "", lines, differing=differing)


def _check_without_original(model: Model, answers: Mapping[str, Answer]) -> Check:
    """Check a template without comparing it."""
    asked = [answers[name] for name in SAMPLES]
    if asked[0].text is None:
        return judged(TEMPLATE, [f"with a question, the template {asked[0].error}"], "")
    problems = list(remarks(asked, model.metadata))
    faults = [each for each in problems if "no token of this vocabulary" in each or "drops what" in each]
    lines = [each for each in problems if each not in faults]
    return judged(TEMPLATE, faults, f"{_count(answers)} of {len(answers)} conversations become texts", lines)


def _is_other(answer: Answer, other: Answer) -> bool:
    return (answer.text, bool(answer.error)) != (other.text, bool(other.error))


def _rendered(template: str, special: Mapping[str, str]) -> dict[str, Answer]:
    """Render each sample with and without the generation prompt."""
    common = {"tools": None, "documents": None, **special}
    asked: dict[str, dict[str, Any]] = {}
    for prompt in (True, False):
        for name, sample in SAMPLES.items():
            asked[name if prompt else f"{name} that is over"] = common | {"add_generation_prompt": prompt} | sample
    return dict(zip(asked, render(template, list(asked.values()), now=TODAY), strict=True))


def _count(answers: Mapping[str, Answer]) -> int:
    return sum(each.text is not None for each in answers.values())


def _lines(answer: Answer) -> list[str]:
    return [f"refused: {answer.error}"] if answer.text is None else answer.text.split("\n")


def check_tokens(model: Model, original: Original | None) -> Check:
    """Check that texts get the original's ids, with and without special tokens around them."""
    tokenizer = model.tokenizer
    controls = [tokenizer.text(number) for number in tokenizer.control_ids[:MAX_SPECIAL]]
    texts = token_texts(controls)
    if original is None:
        for text in texts:
            tokenizer.encode(text, parse_special=True)
        return skipped(TOKENS, f"{len(texts)} texts become tokens; there is no original to compare them with")
    encoders = original.encoders
    if not encoders:
        return skipped(TOKENS, "the original has neither tokenizer.json nor tokenizer.model")
    faults, tokens, compared = [], 0, 0
    for text in texts:
        for around in (False, True):
            difference = ""
            for name, encode in encoders.items():
                plain = name == SENTENCEPIECE  # which does not match special tokens in texts
                ours, theirs = tokenizer.encode(text, around, not plain), encode(text, around)
                if ours == theirs:
                    difference, tokens = "", tokens + len(ours)
                    break
                difference = difference or _parting(model, text, ours, theirs, around)
            compared += 1
            if difference:
                faults.append(difference)
    seen = f"{compared} readings of {len(texts)} texts, {tokens:,} tokens, are those of {' or '.join(encoders)}"
    share = f"{len(faults)} of {compared} readings differ"
    lines = [share] if faults else []
    return judged(TOKENS, faults, seen, lines, texts=len(texts), readings=compared, differing=len(faults))


def _parting(model: Model, text: str, ours: list[int], theirs: list[int], around: bool) -> str:
    place = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(ours), len(theirs)) if place is None else place
    here, there = (_token(model, ids[place]) if place < len(ids) else "the end" for ids in (ours, theirs))
    how = " with special tokens around it" if around else ""
    return f"{quote(text[:60])}{how}: token {place} is {here}, by the original {there}"


def _token(model: Model, number: int) -> str:
    """Return a token as its number and text."""
    tokenizer = model.tokenizer
    return f"{number} {quote(tokenizer.text(number))}" if 0 <= number < tokenizer.vocab_size else f"{number}, no token"


def check_special(model: Model, original: Original | None) -> Check:
    """Check that the tokens which begin and end texts are those of the original's configs."""
    ends = model.tokenizer.end_ids
    ids_by_role = {role: model.metadata.get(SPECIAL_TOKENS[role]) for role in (*ROLES, "eot")}
    shown = [f"{role} {_token(model, int(number))}" for role, number in ids_by_role.items() if number is not None]
    seen = ", ".join(shown) or "none are named"
    lines = [f"ends of a text: {_listed(model, ends) or 'none'}"]
    if original is None:
        if not ends and ids_by_role["eos"] is None and model.metadata.get("tokenizer.ggml.model") != "none":
            return judged(SPECIAL, ["no token ends a text"], seen, lines)
        return judged(SPECIAL, [], seen, lines)
    faults = []
    for role in ROLES:
        wanted, number = original.tokens(role), ids_by_role[role]
        known = {each for ids in wanted.values() for each in ids if each >= 0}
        places = "; ".join(f"{_listed(model, ids)} by {name}" for name, ids in wanted.items())
        places = _listed(model, known) if len(known) == 1 else places
        if number is None:
            if known and role in NEEDED:
                faults.append(f"the file names no {role} token; the original's is {places}")
        elif known and int(number) not in known:
            faults.append(f"{role} is {_token(model, int(number))}; the original's is {places}")
    known = {each for ids in original.tokens("eos").values() for each in ids}
    if lost := sorted(known - set(ends)):  # GGUF holds fewer end tokens than configs: some may be missing
        unended = f"a text does not end at {_listed(model, lost)}, as the original's does"
        (lines if known & set(ends) else faults).append(unended)
    return judged(SPECIAL, faults, seen, lines)


def _listed(model: Model, ids: Iterable[int]) -> str:
    return ", ".join(_token(model, number) for number in ids)
