"""Grammars: which tokens may come next, by llguidance (extra `grammar`).

A grammar is GBNF, llama.cpp's notation, or a JSON schema, which is refused if it cannot be enforced. Source: llama.cpp,
grammars/README.md.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import OptionError, VocabularyError
from quants.spelling import quote

from .grammar_rules import check_gbnf, check_lark, check_schema

EXTRA = 'install the extra: pip install "gguftools[grammar]"'
# A literal, a class and a comment, which contain no token; a token, which `!` excludes.
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|(!?)<(?:\[(\d{1,12})\]|([^<>\s]+))>')
PLACE = re.compile(r'^(token_in_place_(\d+):) "x"\s*\| token_in_place_\2 "x"$', re.MULTILINE)
MAX_ITEMS_IN_ROW, MAX_ITEMS_IN_STEP = 100_000, 2_000_000  # of llguidance: about 0.1 s for a token
SURROGATES = range(0xD800, 0xE000)  # halves of a UTF-16 pair
# White space of a schema's texts, by default: llama.cpp's rule `space`. A small model that may write any amount of it
# writes nothing else.
SPACE = r"( |\n{1,2}[ \t]{0,20})?"
LARK = "%llguidance"  # begins a grammar in llguidance's own notation, as in llama.cpp


@dataclass(frozen=True)
class GrammarVocabulary:
    """The grammar's view of a tokenizer; keep it, for it takes seconds to prepare.

    pieces: the bytes of each token. end_ids: tokens that end a text. control_ids: tokens that no text produces. Raises
    VocabularyError if no token ends a text.
    """

    pieces: Sequence[bytes]
    end_ids: tuple[int, ...]
    control_ids: tuple[int, ...] = ()

    @cached_property
    def numbers(self) -> Mapping[bytes, int]:
        """Return the first token of each byte string."""
        return {piece: number for number, piece in reversed(list(enumerate(self.pieces)))}

    def __post_init__(self) -> None:
        if not self.end_ids:
            raise VocabularyError("the vocabulary has no token that ends a text, and so no grammar is ever done")

    @cached_property
    def prepared(self) -> Any:
        """Return llguidance's LLTokenizer. Raises OptionError without the extra."""
        library = _library()
        return library.LLTokenizer(
            library.TokenizerWrapper(_Wrapped(self)), n_vocab=len(self.pieces), eos_token=list(self.end_ids)
        )


class _Wrapped:
    """A vocabulary with the attributes that llguidance reads."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = list(vocabulary.pieces)
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted({*vocabulary.control_ids, *vocabulary.end_ids})

    def __call__(self, text: str | bytes) -> list[int]:
        """Return tokens of a text: needed only for forcing, which `_unforced` switches off."""
        raise NotImplementedError


class Grammar:
    """A grammar in use. Texts may be queried in any order: common beginnings are not parsed again."""

    def __init__(self, lark: str, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lark = lark
        self._start()
        if self._matcher.is_error():
            raise OptionError(f"the grammar cannot be used: {_one_line(self._matcher.get_error())}")

    def allowed(self, tokens: Sequence[int], size: int) -> NDArray[np.bool_]:
        """Return which of `size` tokens may come after `tokens`, which were generated: (size,).

        A complete text allows a token that ends it. Raises OptionError if the tokens themselves violate the grammar, or
        it is too complex.
        """
        ends = [place for place, token in enumerate(tokens) if token in self._vocabulary.end_ids]
        self._go_to(tokens[: ends[0]] if ends else tokens)
        mask = np.zeros(size, np.bool_)
        if ends:
            mask[list(self._vocabulary.end_ids)] = True
            return mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failure()
        known = np.unpackbits(bits, bitorder="little")[: min(size, len(self._vocabulary.pieces))]
        mask[: len(known)] = known
        mask[list(self._vocabulary.end_ids)] = self._matcher.is_accepting()  # decided separately from other tokens
        return mask

    def is_done(self, tokens: Sequence[int]) -> bool:
        """Return whether a text may end here."""
        return bool(self.allowed(tokens, len(self._vocabulary.pieces))[list(self._vocabulary.end_ids)].any())

    def _start(self) -> None:
        limits = _library().LLParserLimits(max_items_in_row=MAX_ITEMS_IN_ROW, step_max_items=MAX_ITEMS_IN_STEP)
        self._matcher = _library().LLMatcher(self._vocabulary.prepared, self._lark, log_level=0, limits=limits)
        self._read: list[int] = []

    def _failure(self) -> OptionError:
        """Return the error of a matcher that gave up, after replacing it by a new one."""
        message = _one_line(self._matcher.get_error())
        self._start()  # errors persist, and other texts may have none
        return OptionError(f"the grammar cannot be followed: {message}")

    def _go_to(self, tokens: Sequence[int]) -> None:
        pairs = enumerate(zip(self._read, tokens, strict=False))
        common = next((place for place, (a, b) in pairs if a != b), min(len(self._read), len(tokens)))
        if back := len(self._read) - common:
            self._matcher.rollback(back)
            del self._read[common:]
        rest = list(tokens[common:])
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._read += rest[:taken]
        if self._matcher.is_error():
            raise self._failure()
        if taken < len(rest):
            raise OptionError(f"token {rest[taken]} cannot come at place {common + taken} of a text by the grammar")


def grammar_from_gbnf(text: str, vocabulary: GrammarVocabulary) -> Grammar:
    """Return a grammar in GBNF, which begins with the rule `root`. Raises OptionError for an unusable one."""
    _library()
    if text.lstrip().startswith(LARK):
        check_lark(text)
        return Grammar(_unforced(text), vocabulary)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text, tokens = _without_tokens(_plain_escapes(text), vocabulary)
    text = check_gbnf(text)
    try:
        lark = _with_tokens(gbnf_to_lark(text), tokens)
        lark.encode()
    except Exception as error:  # the library raises Exception itself
        raise OptionError(f"the grammar is not GBNF: {_one_line(str(error))}") from error
    return Grammar(_unforced(lark), vocabulary)


def grammar_from_json_schema(schema: str | Mapping[str, Any] | bool, vocabulary: GrammarVocabulary) -> Grammar:
    """Return a grammar of the JSON texts that a schema allows, with white space as in llama.cpp.

    `x-guidance` in the schema has llguidance's options (`whitespace_pattern`). Raises OptionError for a schema that
    cannot be enforced.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"the schema is not JSON: {_one_line(str(error))}") from error
    if not isinstance(schema, (Mapping, bool)):
        raise OptionError("the schema is neither an object nor a boolean")
    check_schema(schema)
    if schema is not False:
        rest = {} if schema is True else dict(schema)
        schema = {**rest, "x-guidance": rest.get("x-guidance", {"whitespace_pattern": SPACE})}
    return Grammar(_unforced(f"{LARK} {{}}\nstart: %json {json.dumps(schema)}"), vocabulary)


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise OptionError("a grammar needs llguidance, which is not installed", EXTRA) from error
    return llguidance


def _unforced(lark: str) -> str:
    """Return a grammar that allows every fitting token, not only the tokenizer's canonical one."""
    head, _, rest = lark.partition(LARK)
    try:
        options, end = json.JSONDecoder().raw_decode(rest.lstrip())
        settled = json.dumps({**options, "no_forcing": True})
    except (ValueError, TypeError, RecursionError) as error:
        raise OptionError(f"the grammar cannot be used: after {LARK} no options in braces follow") from error
    return f"{head}{LARK} {settled}{rest.lstrip()[end:]}"


def _without_tokens(text: str, vocabulary: GrammarVocabulary) -> tuple[str, list[str]]:
    """Return GBNF with a rule for each token (`<[7]>`, `<text>`, `!<[7]>`), which llguidance's parser does not know.

    The tokens are written in llguidance's own notation. Raises OptionError for one that is not in the vocabulary.
    """
    tokens: list[str] = []

    def name(match: re.Match[str]) -> str:
        if match[2] is None and match[3] is None:
            return match[0]
        number = int(match[2]) if match[2] else _token_of(f"<{match[3]}>".encode(), vocabulary)
        if not 0 <= number < len(vocabulary.pieces):
            written = match[0].removeprefix("!")
            raise OptionError(f"the grammar has {quote(written)}, but the vocabulary has no such token")
        tokens.append(f"<[{'^' if match[1] else ''}{number}]>")
        return _rule(len(tokens) - 1)

    text = TOKEN.sub(name, text)
    # Self-recursive rules: others would become part of a lexeme, which cannot contain tokens.
    rules = [f'{_rule(place)} ::= "x" | {_rule(place)} "x"\n' for place in range(len(tokens))]
    return "\n".join([text, *rules]), tokens


def _with_tokens(lark: str, tokens: Sequence[str]) -> str:
    return PLACE.sub(lambda rule: f"{rule[1]} {tokens[int(rule[2])]}", lark) if tokens else lark


def _rule(place: int) -> str:
    return f"token-in-place-{place}"


def _token_of(text: bytes, vocabulary: GrammarVocabulary) -> int:
    """Return the token with this text, a control token first; -1 if there is none."""
    matching = (number for number in vocabulary.control_ids if vocabulary.pieces[number] == text)
    return next(matching, vocabulary.numbers.get(text, -1))


def _plain_escapes(text: str) -> str:
    r"""Return GBNF with characters for \u and \U, which llguidance's parser garbles."""

    def character(escape: re.Match[str]) -> str:
        number = int(escape[1] or escape[2] or "0", 16)
        if not number or number in SURROGATES or number > sys.maxunicode:
            return escape[0]
        return f"\\x{number:02X}" if number < 0x80 else chr(number)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", character, text)


def _one_line(text: str) -> str:
    """Return the message of an error, without the trailing parser state and our grammar."""
    return " ".join(re.split(r"<state>|<backtrace>|\n *1 \|", text)[0].split())[:300]
