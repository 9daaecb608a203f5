"""Tokens that end texts: from configs into a file's keys, what generation makes of these, and back."""

from __future__ import annotations

from typing import Any

import pytest

from archs.metadata import Metadata
from archs.vocab.ends import LISTED, ends, suppressed_ids, write_ends
from archs.vocab.listed import TokenList
from runtime.tokenizer import end_ids

EOT, EOM = "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"
TOKENS = ["#", "a", "<s>", "<end>", "<turn>", "<tool>", "<more>", "<|im_end|>"]
NORMAL, CONTROL = 1, 3


def vocabulary(count: int = len(TOKENS), **keys: int) -> Metadata:
    """A vocabulary of the first tokens; 0 and 1 are text, 3 ends one."""
    metadata = Metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": TOKENS[:count],
            "tokenizer.ggml.token_type": [NORMAL if row < 2 else CONTROL for row in range(count)],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 3,
        }
    )
    for role, number in keys.items():
        metadata[f"tokenizer.ggml.{role}_token_id"] = number
    return metadata


@pytest.mark.parametrize(
    ("listed", "keys"),
    [
        ([3], {}),
        ([3, 4], {EOT: 4}),
        ([4, 3], {EOT: 4}),
        ([3, 4, 5], {EOT: 4, EOM: 5}),
        ([3, 4, 5, 6], {EOT: 4, EOM: 5, LISTED: [3, 4, 5, 6]}),
        ([4], {EOT: 4}),  # the tokenizer names another one
        (4, {EOT: 4}),
        (0, {}),  # "#": what a config has where nobody thought of it
        ([3, 0], {EOT: 0, LISTED: [3, 0]}),  # text, but in a list
        ([3, 99], {}),
    ],
)
def test_each_listed_end_has_a_key(listed: Any, keys: dict[str, Any]) -> None:
    metadata = vocabulary(7)
    write_ends(metadata, {"eos_token_id": 3}, {"eos_token_id": listed})
    found = {key: metadata[key] for key in (EOT, EOM, LISTED) if key in metadata}
    assert {key: list(value) if key == LISTED else value for key, value in found.items()} == keys
    every = listed if isinstance(listed, list) else [listed] if listed else []
    assert {3, *every} - {99} == {*end_ids(TokenList(metadata))}
    again = ends(metadata)
    assert {*every} - {99} <= {*(again if isinstance(again, list) else [again])}


def test_lists_of_config_json_count_where_generation_config_has_none() -> None:
    metadata = vocabulary()
    write_ends(metadata, {"eos_token_id": [3, 4]}, {})
    assert 4 in end_ids(TokenList(metadata))


def test_a_key_is_free_only_where_no_name_means_it() -> None:
    """llama.cpp takes `<|im_end|>` for the end of a turn where no key names another."""
    metadata = vocabulary()
    write_ends(metadata, {}, {"eos_token_id": [3, 4]})
    assert EOT not in metadata
    assert metadata[EOM] == 4
    taken = vocabulary(7, eot=6, eom=5)
    write_ends(taken, {}, {"eos_token_id": [3, 4]})
    assert (taken[EOT], taken[EOM], list(taken[LISTED])) == (6, 5, [3, 4])
    assert {3, 4, 5, 6} == {*end_ids(TokenList(taken))}


def test_names_that_end_texts_anyway_are_listed_for_the_way_back() -> None:
    metadata = vocabulary()
    write_ends(metadata, {}, {"eos_token_id": [3, 7]})
    assert EOT not in metadata
    assert EOM not in metadata
    assert ends(metadata) == [3, 7]


def test_words_of_one_token_are_barred_unless_they_end_a_text() -> None:
    generation = {"suppress_tokens": [5], "bad_words_ids": [[6], [1, 2], [3], [4]]}
    assert suppressed_ids(generation, [3, 4]) == [5, 6]
    assert suppressed_ids({"bad_words_ids": None, "suppress_tokens": None}, None) == []
