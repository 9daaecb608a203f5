"""Grammars: which tokens may come, in texts that go on, go back and end; errors as one line."""

from __future__ import annotations

import ctypes
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gguftools.io.gguf.reader import open_gguf
from quants.errors import OptionError, VocabularyError
from runtime.sampling.grammar import Grammar, GrammarVocabulary, grammar_from_gbnf, grammar_from_json_schema
from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler
from runtime.tokenizer import tokenizer_from_metadata

WORDS = [b"yes", b"no", b"ye", b'{"', b"<end>", b"<stop>", b"<begin>"]
PIECES = [bytes([byte]) for byte in range(256)] + WORDS
END, STOP, BEGIN = 260, 261, 262
VOCABULARY = GrammarVocabulary(PIECES, (END, STOP), (BEGIN,))
SIZE = len(PIECES) + 5  # logits may have more rows than there are tokens


def ids(text: str) -> list[int]:
    return list(text.encode())


def pieces(grammar: Grammar, text: str | list[int]) -> set[bytes]:
    mask = grammar.allowed(ids(text) if isinstance(text, str) else text, SIZE)
    assert mask.shape == (SIZE,)
    assert not mask[len(PIECES) :].any()
    return {PIECES[token] for token in np.flatnonzero(mask)}


def test_every_token_that_fits_may_come():
    grammar = grammar_from_gbnf('root ::= "yes" | "no" [0-9]?', VOCABULARY)
    assert pieces(grammar, "") == {b"y", b"ye", b"yes", b"n", b"no"}
    assert pieces(grammar, "ye") == {b"s"}
    assert pieces(grammar, "yes") == {b"<end>", b"<stop>"}
    assert pieces(grammar, "no") == {*map(bytes, zip(range(48, 58), strict=True)), b"<end>", b"<stop>"}
    assert pieces(grammar, "no7") == {b"<end>", b"<stop>"}
    assert [grammar.is_done(ids(text)) for text in ("", "ye", "yes", "no", "no7")] == [False, False, True, True, True]


def test_texts_in_any_order():
    grammar = grammar_from_gbnf('root ::= "(" root ")" | "x"', VOCABULARY)
    generator = np.random.default_rng(0)
    for _ in range(100):
        depth = int(generator.integers(0, 9))
        closed = int(generator.integers(0, depth + 1))
        text = "(" * depth + ("x" + ")" * closed if closed else "")
        expected = {b"(", b"x"} if not closed else {b")"} if closed < depth else {b"<end>", b"<stop>"}
        assert pieces(grammar, text) == expected
        assert pieces(grammar, [*ids("(x)"), END]) == {b"<end>", b"<stop>"}


def test_a_token_that_does_not_fit_is_named_and_nothing_is_lost():
    grammar = grammar_from_gbnf('root ::= "yes"', VOCABULARY)
    with pytest.raises(OptionError, match="token 110 cannot come at place 1 of a text by the grammar"):
        grammar.allowed(ids("yn"), SIZE)
    assert pieces(grammar, "ye") == {b"s"}


def test_escapes():
    grammar = grammar_from_gbnf(r'root ::= "\u0041\\u0042\"" [\u00e9-\u00ff\x2D] "\U0001F600\n"', VOCABULARY)
    text = 'A\\u0042"é😀\n'
    for place, byte in enumerate(text.encode()):
        assert bytes([byte]) in pieces(grammar, list(text.encode()[:place]))
    assert grammar.is_done(ids(text))


def test_tokens_by_number_and_by_text():
    grammar = grammar_from_gbnf('root ::= <begin> (!<[256]> "-")+ <[256]> # <none>\n', VOCABULARY)
    assert pieces(grammar, "") == {b"<begin>"}
    within = pieces(grammar, [BEGIN])
    assert within == {*PIECES} - {b"yes", b"<end>", b"<stop>"}
    assert pieces(grammar, [BEGIN, 257]) == {b"-"}
    assert pieces(grammar, [BEGIN, 257, ord("-")]) == within | {b"yes"}
    assert grammar.is_done([BEGIN, 257, ord("-"), 256])
    assert not grammar.is_done([BEGIN, 257, ord("-")])


def test_what_looks_like_a_token_in_a_text_is_none():
    grammar = grammar_from_gbnf('root ::= "<[1]>" [<a>]', VOCABULARY)
    assert grammar.is_done(ids("<[1]>>"))
    assert pieces(grammar, "<[1]>") == {b"<", b"a", b">"}


def test_a_schema():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        grammar = grammar_from_json_schema(given, VOCABULARY)
        text = '{"a": 12, "b": "y"}'
        assert grammar.is_done(ids(text))
        assert b'{"' in pieces(grammar, "")
        assert pieces(grammar, '{"a": 12, "') == {b"b"}
        assert not grammar.is_done(ids(text[:-1]))


def test_white_space_of_a_schema_ends():
    """Otherwise small models write nothing else."""
    schema = {"type": "array", "items": {"type": "integer"}}
    grammar = grammar_from_json_schema(schema, VOCABULARY)
    assert grammar.is_done(ids("[\n\n  1, 2\n]"))
    assert b"\n" not in pieces(grammar, "[\n\n")
    assert pieces(grammar, "[1 ") == {b",", b"]"}
    assert pieces(grammar_from_json_schema(True, VOCABULARY), "[\n\n" + 20 * " ").isdisjoint({b"\n", b" "})
    own = {**schema, "x-guidance": {"whitespace_flexible": True}}
    assert b"\n" in pieces(grammar_from_json_schema(own, VOCABULARY), "[\n\n\n\n\n")


def test_lark_as_llama_takes_it():
    grammar = grammar_from_gbnf('%llguidance {"no_forcing": false}\nstart: "yes"', VOCABULARY)
    assert pieces(grammar, "") == {b"y", b"ye", b"yes"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the grammar is not GBNF: No 'root' rule found"),
        ("root ::= a", "the grammar is not GBNF: Rule 'a' not found"),
        ('root ::= "a" {2', "the grammar is not GBNF: Expected ',' or '}' at line 1"),
        ('root ::= <[999]> "a"', "the grammar has '<[999]>', but the vocabulary has no such token"),
        ('root ::= !<think> "a"', "the grammar has '<think>', but the vocabulary has no such token"),
        (f"root ::= <[{'9' * 5000}]>", "but the vocabulary has no such token"),
        ('root ::= <[> "a"', "the grammar has '<[>', but the vocabulary has no such token"),
        ('root ::= < "a"', "the grammar is not GBNF: Expected name at line 1"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "the grammar is not GBNF: maximum recursion depth exceeded"),
        ('root ::= "\ud800"', "the grammar is not GBNF: 'utf-8' codec can't encode"),
        (r'root ::= "\ud800"', "the grammar cannot be used: "),
        ("%llguidance start", "after %llguidance no options in braces follow"),
        ("%llguidance {}\nstart: x", "the grammar cannot be used: "),
    ],
    ids=range(13),
)
def test_grammars_that_cannot_be_used(text, message):
    with pytest.raises(OptionError) as caught:
        grammar_from_gbnf(text, VOCABULARY)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_grammar_of_nothing_ends_in_one_line():
    with pytest.raises(OptionError, match="the grammar cannot be followed: NoExtension") as caught:
        grammar_from_gbnf("root ::= root", VOCABULARY).allowed([], SIZE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("[1", "the schema is not JSON: "),
        ("[" * 100_000, "the schema is not JSON: "),
        ("5", "the schema is neither an object nor a boolean"),
        ({"type": "foo"}, "Invalid type: foo"),
        ({"type": "string", "pattern": "^(a"}, "unclosed group"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"$ref": "http://localhost/x"}, "retrieving it failed"),
        ({"$ref": "file:///etc/passwd"}, "retrieving it failed"),
    ],
    ids=range(8),
)
def test_schemas_that_cannot_be_kept(schema, message):
    with pytest.raises(OptionError) as caught:
        grammar_from_json_schema(schema, VOCABULARY)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_must_end_texts():
    with pytest.raises(VocabularyError, match="no token that ends a text"):
        GrammarVocabulary(PIECES, ())


def test_without_the_extra_a_hint():
    code = (
        "import sys; sys.modules['llguidance'] = None\n"
        "from quants.errors import OptionError\n"
        "from runtime.sampling.grammar import GrammarVocabulary, grammar_from_gbnf\n"
        "try: grammar_from_gbnf('', GrammarVocabulary([b'a'], (0,)))\n"
        "except OptionError as error: print(error, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        'a grammar needs llguidance, which is not installed install the extra: pip install "gguftools[grammar]"\n'
    )


def sampler_of(text: str, first: bool, **options) -> Sampler:
    grammar = grammar_from_gbnf(text, VOCABULARY)
    return Sampler(Sampling(samplers=(), seed=0, **options), end_ids=[END, STOP], grammar=grammar, grammar_first=first)


def test_a_refused_token_is_drawn_again_among_those_allowed():
    """Of drawing, testing and drawing once more comes what was allowed at first, and its share of the refused."""
    logits = np.full(SIZE, -np.inf, np.float32)
    logits[ids("ynx")] = np.log([0.1, 0.3, 0.6])
    for first in (False, True):
        p = sampler_of('root ::= "yes" | "no"', first).probabilities(logits).over(SIZE)
        assert p[ids("ynx")] == pytest.approx([0.25, 0.75, 0])


def test_a_refused_token_is_drawn_again_after_a_cut():
    logits = np.full(SIZE, -np.inf, np.float32)
    logits[ids("ynx")] = np.log([0.1, 0.3, 0.6])
    grammar = grammar_from_gbnf('root ::= "yes" | "no"', VOCABULARY)
    options = Sampling(samplers="kt", top_k=2, temperature=1.0)
    p = Sampler(options, grammar=grammar).probabilities(logits).over(SIZE)
    # n is drawn of {x, n} in a third of the cases; of the rest a quarter is y, of {n, y}.
    assert p[ids("ynx")] == pytest.approx([2 / 3 / 4, 1 / 3 + 2 / 3 * 3 / 4, 0])
    p = Sampler(options, grammar=grammar, grammar_first=True).probabilities(logits).over(SIZE)
    assert p[ids("ynx")] == pytest.approx([0.25, 0.75, 0])


@pytest.mark.parametrize("first", [False, True])
def test_texts_drawn_are_of_the_grammar(first):
    sampler = sampler_of('root ::= "[" [0-9] ("," [0-9]){0,5} "]"', first)
    logits = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    for seed in range(20):
        sampler.reset(seed)
        while not sampler.ends(token := sampler.draw(logits)):
            assert len(sampler.state.generated) < 20
        assert token in (END, STOP)
        assert isinstance(json.loads(bytes(sampler.state.generated[:-1])), list)


def test_a_state_put_back_goes_on_in_its_own_text():
    sampler = sampler_of('root ::= "a" ("b" | "c") "d"', True)
    logits = np.zeros(SIZE, np.float32)
    sampler.draw(logits)
    before = sampler.state
    sampler.draw(logits)
    assert set(sampler.probabilities(logits).ids.tolist()) == {ord("d")}
    assert set(sampler.probabilities(logits, before).ids.tolist()) == set(b"bc")
    sampler.state = before
    assert set(sampler.probabilities(logits).ids.tolist()) == set(b"bc")


def test_nothing_fits_what_the_model_says():
    logits = np.full(SIZE, -np.inf, np.float32)
    logits[ord("x")] = 0
    with pytest.raises(OptionError, match="no token can be drawn: biases and grammar left none"):
        sampler_of('root ::= "y"', False).draw(logits)


TEXTS = {
    "json": (
        r"""
root ::= object
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
value ::= object | string | [0-9]+ ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" ["\\nt])* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
""",
        r'{"a": "b é\n", "c": {}}',
    ),
    "sum": (
        r"""
root ::= (expr "=" term "\n")+
expr ::= term ([-+*/] term)*
term ::= [0-9]+ | "(" expr ")"
""",
        "1+(2*3)=7\n",
    ),
    "kana": ("root ::= [ぁ-ゟ]+ ([、。] [ぁ-ゟ]+)*", "あいう、え"),
}


@pytest.mark.verify
@pytest.mark.parametrize("vocabulary", ["qwen2", "llama-spm"])
@pytest.mark.parametrize("name", TEXTS)
def test_masks_are_those_of_llama(name, vocabulary, shared: Path, tmp_path: Path):
    """But for bytes that never are in UTF-8 or that no character of a class begins with, and control tokens' names."""
    llama = pytest.importorskip("llama_cpp").llama_cpp
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(lzma.decompress((shared / f"vocabs/ggml-vocab-{vocabulary}.gguf.xz").read_bytes()))
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    vocab = llama.llama_model_get_vocab(model)
    tokenizer = tokenizer_from_metadata(open_gguf(path).metadata)
    size = tokenizer.vocab_size
    all_pieces, control = tokenizer.pieces, {*tokenizer.control_ids}
    ends = tuple(number for number in range(size) if llama.llama_vocab_is_eog(vocab, number))
    grammar_text, text = TEXTS[name]
    grammar = grammar_from_gbnf(grammar_text, GrammarVocabulary(all_pieces, ends, tokenizer.control_ids))
    reference = llama.llama_sampler_init_grammar(vocab, grammar_text.encode(), b"root")
    kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    single = {piece: number for number, piece in enumerate(all_pieces) if len(piece) == 1}
    tokens = [single[bytes([byte])] for byte in text.encode()]
    whole = np.array([number not in control and _is_text(all_pieces[number]) for number in range(size)])
    for place in range(len(tokens) + 1):
        data = np.zeros(size, kind)
        data["id"] = np.arange(size)
        array = llama.llama_token_data_array(data.ctypes.data_as(llama.llama_token_data_p), size, -1, False)
        llama.llama_sampler_apply(reference, ctypes.byref(array))
        allowed = np.isfinite(data["logit"])
        np.testing.assert_array_equal(grammar.allowed(tokens[:place], size)[whole], allowed[whole])
        if place < len(tokens):
            llama.llama_sampler_accept(reference, tokens[place])
    llama.llama_sampler_free(reference)
    llama.llama_model_free(model)


def _is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False
