"""What the keys that we know must hold: the type that the reference reads them as, and values that mean something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gguf.constants import Keys

from archs.keys import COUNT, ELSEWHERE, F32, FLAG, MODEL, STRINGS, TEXT, U32, Rule
from archs.metadata import Metadata, Value, ValueType
from quants import Tensor

from .files.gguf_writer import RESERVE_KEY
from .files.strings import quote
from .values import Kind, kind_of

TOKENS = Keys.Tokenizer.LIST

GENERAL: dict[str, Rule] = {
    **dict.fromkeys(
        ("architecture", "type", "name", "author", "version", "organization", "finetune", "basename", "description",
         "quantized_by", "size_label", "license", "license.name", "license.link", "url", "doi", "uuid", "repo_url",
         "source.url", "source.doi", "source.uuid", "source.repo_url"), TEXT),
    **dict.fromkeys(("tags", "languages"), STRINGS),
    **dict.fromkeys(("file_type", "quantization_version", "base_model.count", "dataset.count"), COUNT),
    "alignment": Rule(U32, 1),
}  # fmt: skip
TOKENIZER: dict[str, Rule] = {
    Keys.Tokenizer.MODEL: TEXT, Keys.Tokenizer.PRE: TEXT, Keys.Tokenizer.CHAT_TEMPLATE: TEXT,
    Keys.Tokenizer.HF_JSON: TEXT, TOKENS: STRINGS, Keys.Tokenizer.MERGES: STRINGS,
    Keys.Tokenizer.CHAT_TEMPLATES: STRINGS, Keys.Tokenizer.TOKEN_TYPE: Rule(ValueType.INT32, array=True),
    Keys.Tokenizer.SCORES: Rule(F32, array=True), Keys.Tokenizer.TOKEN_TYPE_COUNT: Rule(U32, 1),
    **dict.fromkeys(
        (Keys.Tokenizer.ADD_BOS, Keys.Tokenizer.ADD_EOS, Keys.Tokenizer.ADD_SEP, Keys.Tokenizer.ADD_PREFIX,
         Keys.Tokenizer.REMOVE_EXTRA_WS), FLAG),
}  # fmt: skip
SPECIAL_TOKENS = {  # the roles of --special-token
    "bos": Keys.Tokenizer.BOS_ID, "eos": Keys.Tokenizer.EOS_ID, "unk": Keys.Tokenizer.UNK_ID,
    "sep": Keys.Tokenizer.SEP_ID, "pad": Keys.Tokenizer.PAD_ID, "mask": Keys.Tokenizer.MASK_ID,
    "eot": Keys.Tokenizer.EOT_ID, "eom": Keys.Tokenizer.EOM_ID, "cls": "tokenizer.ggml.cls_token_id",
    "fim_pre": Keys.Tokenizer.FIM_PRE_ID, "fim_suf": Keys.Tokenizer.FIM_SUF_ID,
    "fim_mid": Keys.Tokenizer.FIM_MID_ID, "fim_pad": Keys.Tokenizer.FIM_PAD_ID,
    "fim_rep": Keys.Tokenizer.FIM_REP_ID, "fim_sep": Keys.Tokenizer.FIM_SEP_ID,
}  # fmt: skip
PER_TOKEN = (Keys.Tokenizer.TOKEN_TYPE, Keys.Tokenizer.SCORES)
NEEDED = ("block_count", "context_length", "embedding_length", "attention.head_count")


def rule_of(key: str, architecture: str) -> Rule | None:
    """What is known of a key; None for one that we don't know."""
    if key.startswith("general."):
        name = key.removeprefix("general.")
        listed = name.startswith(("base_model.", "dataset.")) and name.count(".") == 2
        return TEXT if listed else GENERAL.get(name)
    if is_token_id(key):
        return COUNT
    if is_chat_template(key):
        return TEXT
    if architecture and key.startswith(f"{architecture}."):
        return MODEL.get(key.removeprefix(f"{architecture}."))
    return TOKENIZER.get(key) or ELSEWHERE.get(key)


def kind_of_rule(rule: Rule) -> Kind:
    return Kind(ValueType.ARRAY, Kind(rule.type)) if rule.array else Kind(rule.type)


def is_token_id(key: str) -> bool:
    return key.startswith("tokenizer.ggml.") and key.endswith("_token_id")


def is_chat_template(key: str) -> bool:
    return key == Keys.Tokenizer.CHAT_TEMPLATE or key.startswith(f"{Keys.Tokenizer.CHAT_TEMPLATE}.")


def problems(key: str, old: Value | None, metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """What makes the new value of a key one that the model cannot have; `old` is what it was before."""
    value, architecture = metadata.value(key), architecture_of(metadata)
    if key == RESERVE_KEY:
        yield f"{key!r} is the space for later edits, not a value; its size is given by --reserve"
    if key.startswith("split.") and key != "split.vram_capacity":  # that one is of PowerInfer's placement files
        yield f"{key!r} belongs to the shards of a split set; split and merge write it"
    rule = rule_of(key, architecture)
    if rule is not None:
        stored_so = old is not None and kind_of(old) == kind_of(value)
        if not rule.allows(value) and not stored_so:
            yield f"{key!r} is read as {kind_of_rule(rule)}, not {kind_of(value)}"
        if not rule.allows(value):
            return
        if wrong := rule.wrong(value.data):
            yield f"{key!r} {wrong}"
    if key == "general.alignment" and value.data & (value.data - 1):
        yield f"{key!r} is {value.data}; a power of two is expected"
    yield from _vocabulary_problems(key, value, metadata, tensors)
    if architecture and key.startswith(f"{architecture}."):
        yield from _model_problems(key.removeprefix(f"{architecture}."), key, value, metadata)


def architecture_of(metadata: Metadata) -> str:
    name = metadata.get("general.architecture", "")
    return name if isinstance(name, str) else ""


def _vocabulary_problems(
    key: str, value: Value, metadata: Metadata, tensors: Mapping[str, Tensor]
) -> Iterator[str]:
    count = _length(metadata, TOKENS)
    if count is None:
        return
    if is_token_id(key) and not 0 <= value.data < count:
        yield f"{key!r} is {value.data}; the vocabulary has the tokens 0 to {count - 1}"
    if key in PER_TOKEN and len(value.data) != count:
        yield f"{key!r} has {len(value.data)} items; the vocabulary has {count} tokens"
    if key == TOKENS:
        for other in PER_TOKEN:
            if _length(metadata, other) not in (None, count):
                yield f"{key!r} has {count} items, but {other!r} has {len(metadata[other])}"
        embedding = tensors.get("token_embd.weight")
        if embedding is not None and embedding.rows != count:
            yield f"{key!r} has {count} items, but token_embd.weight has {embedding.rows} rows"
        for other in filter(is_token_id, metadata):
            if _are_counts(metadata[other]) and metadata[other] >= count:
                yield f"{key!r} has {count} items, but {other!r} is {metadata[other]}"


def _length(metadata: Metadata, key: str) -> int | None:
    return len(metadata[key]) if key in metadata and metadata.value(key).type is ValueType.ARRAY else None


def _model_problems(name: str, key: str, value: Value, metadata: Metadata) -> Iterator[str]:
    prefix = key.removesuffix(name)
    rule = MODEL.get(name)
    layers = metadata.get(f"{prefix}block_count")
    if rule is not None and rule.per_layer and value.type is ValueType.ARRAY and len(value.data) != layers:
        yield f"{key!r} has {len(value.data)} items; the model has {layers} layers"
    if name in ("attention.head_count", "attention.head_count_kv"):
        heads, groups = (metadata.get(f"{prefix}attention.{each}", 0) for each in ("head_count", "head_count_kv"))
        if _are_counts(heads, groups) and groups and heads % groups:
            yield f"{key!r} is {value.data}: {heads} heads cannot share {groups} key and value heads"
    if name in ("expert_count", "expert_used_count"):
        experts, used = (metadata.get(f"{prefix}{each}", 0) for each in ("expert_count", "expert_used_count"))
        if _are_counts(experts, used) and used > experts:
            yield f"{key!r} is {value.data}: {used} experts cannot be used of {experts}"


def _are_counts(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def removal_problem(key: str, old: Metadata) -> str | None:
    """Why a key should not be removed or renamed."""
    architecture = architecture_of(old)
    needed = {"general.architecture", *(f"{architecture}.{name}" for name in NEEDED)}
    needed |= {Keys.Tokenizer.MODEL} if TOKENS in old else set()
    needed |= {TOKENS} if Keys.Tokenizer.MODEL in old else set()
    return f"no program loads a model without {key!r}" if key in needed else None


def warning(key: str, old: Value | None, metadata: Metadata) -> str | None:
    """What the user should hear about a change that is allowed."""
    architecture = architecture_of(metadata)
    if key == "general.architecture":
        before = "" if old is None else old.data
        left = sum(other.startswith(f"{before}.") for other in metadata)
        more = f", and {left} keys that begin with {f'{before}.'!r} will not be read" if before and left else ""
        return f"another architecture expects other tensors{more}"
    rule = rule_of(key, architecture)
    if rule is not None and rule.shaping and old is not None:
        return f"{key} shapes tensors; those of this file were made for {quote(old.data)}"
    return None
