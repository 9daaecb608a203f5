"""Token types by name: names that mark ends of texts or fill-in-the-middle, whatever types a file gives.

Source: llama.cpp b11434, `llama_vocab::impl::load`. Fine-tunes of 2023 and 2024 have `<|im_end|>` and similar tokens as
ordinary ones; by types alone, the tokens in their chat templates would be split, and the token would be printed. Unlike
in llama.cpp, a token of an ordinary type that merges produce keeps its type: Qwen's `</s>`, which its tokenizer makes
of a text's characters and does not match before that.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from gguf.constants import Keys, TokenType

from .files import AddedToken

ROLES = (
    Keys.Tokenizer.EOS_ID,
    Keys.Tokenizer.EOT_ID,
    Keys.Tokenizer.EOM_ID,
    Keys.Tokenizer.FIM_PAD_ID,
    Keys.Tokenizer.FIM_REP_ID,
    Keys.Tokenizer.FIM_SEP_ID,
)
TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# Of fill-in-the-middle models, if no key names them; of each group the first.
GAP_ENDS = {
    Keys.Tokenizer.FIM_PAD_ID: ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    Keys.Tokenizer.FIM_REP_ID: ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    Keys.Tokenizer.FIM_SEP_ID: ("<|file_sep|>",),
}
GAPS = GAP_ENDS | {
    Keys.Tokenizer.FIM_PRE_ID: (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    Keys.Tokenizer.FIM_SUF_ID: (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    Keys.Tokenizer.FIM_MID_ID: (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
}
SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss: needed to parse its texts
NAMES = TEXTS.union(*GAPS.values(), SHOWN)

# Whitespace stripped next to special tokens, in files that do not specify it (`tokenizer.huggingface.added_tokens`).
PHI3, KEEP_SPACE = ("phi-3", "phi3"), ("<unk>", "<s>", "<|endoftext|>")  # by `general.name`
TAKES_SPACE_BEFORE = {  # by substrings of a key's text, the first that fits
    (Keys.Tokenizer.PRE, ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")): "<mask>",
    (Keys.General.ARCHITECTURE, ("nomic-bert-moe", "jina-bert-v3")): "<mask>",
    (Keys.General.NAME, ("modern-bert",)): "[MASK]",
}


class Listed(Protocol):
    """The part of `TokenList` used here."""

    @property
    def model(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def texts(self) -> Sequence[str]: ...
    @property
    def stored_types(self) -> Any: ...
    def stated(self, key: str) -> int | None: ...
    def id(self, key: str) -> int | None: ...


class Named(NamedTuple):
    """ends: the tokens that end a text. types: of the tokens whose names decide them."""

    ends: frozenset[int]
    types: dict[int, TokenType]


def named(tokens: Listed) -> Named:
    """Return the types and ends that follow from the keys and the names of a vocabulary's tokens."""
    rows = {text: row for row, text in enumerate(tokens.texts) if text in NAMES}
    types = {row: TokenType.CONTROL for text, row in rows.items() if text in TEXTS}
    ends = {number for key in ROLES if (number := _end(tokens, key, types)) is not None} | set(types)
    for key, names in GAPS.items():
        if tokens.stated(key) is None and (of := [rows[name] for name in names if name in rows]):
            types[min(of)] = TokenType.CONTROL
            ends |= {min(of)} if key in GAP_ENDS else set()
    ordinary = {row for row in types if tokens.stored_types[row] == TokenType.NORMAL}
    for row in made_by_merges(tokens, ordinary):
        del types[row]
    types |= {rows[text]: TokenType.USER_DEFINED for text in SHOWN if text in rows}
    texts = {tokens.texts[number] for number in ends}
    if texts >= {"<|call|>", "<|return|>", "<|end|>"} or (
        texts & {"<|call|>", "<|calls|>"} and texts >= {"<|flush|>", "<|end|>"}
    ):
        ends -= {rows["<|end|>"]}  # ends a message there, of which a text may have several
        types[rows["<|end|>"]] = TokenType.USER_DEFINED
    if texts & {"<|tool_response>", "<|plamo:eos|>"} and "</s>" in rows:
        ends -= {rows["</s>"]}  # an HTML tag there
        types[rows["</s>"]] = TokenType.NORMAL
    return Named(frozenset(ends), types)


def made_by_merges(tokens: Listed, rows: Collection[int]) -> set[int]:
    """Return those of some tokens that merges can produce."""
    if not rows:
        return set()
    if tokens.model in ("llama", "t5"):
        known = set(tokens.texts)
        return {row for row in rows if any(left in known and right in known for left, right in cuts(tokens.texts[row]))}
    wanted = {tokens.texts[row].encode(): row for row in rows}
    merges = tokens.metadata.get(Keys.Tokenizer.MERGES, ())
    raw = (merge.encode() if isinstance(merge, str) else bytes(merge) for merge in merges)
    return {wanted[made] for merge in raw if (made := merge.replace(b" ", b"")) in wanted}


def cuts(text: str) -> Iterator[tuple[str, str]]:
    """Return all ways to split a text in two."""
    return ((text[:cut], text[cut:]) for cut in range(1, len(text)))


def _end(tokens: Listed, key: str, types: dict[int, TokenType]) -> int | None:
    """Return the token of a role that ends texts. An assumed one counts only if it is no ordinary text
    (`absent.py`).
    """
    if (stated := tokens.stated(key)) is not None:
        return stated
    number = tokens.id(key)
    if number is None or number in types:
        return number
    if Keys.Tokenizer.TOKEN_TYPE not in tokens.metadata:
        return None if tokens.model == "gpt2" else number
    return None if tokens.stored_types[number] in (TokenType.NORMAL, TokenType.BYTE) else number


def with_strips(metadata: Mapping[str, Any], token: AddedToken) -> AddedToken:
    """Return a special token with the whitespace that it strips, by its model's name."""

    def names(key: str, known: tuple[str, ...]) -> bool:
        return any(each in str(metadata.get(key, "")).lower() for each in known)

    before = next((text for (key, known), text in TAKES_SPACE_BEFORE.items() if names(key, known)), None)
    if before is None and names(Keys.General.NAME, PHI3):
        return replace(token, rstrip=token.content not in KEEP_SPACE)
    return replace(token, lstrip=True) if token.content == before else token
