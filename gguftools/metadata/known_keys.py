"""What the keys that we know must hold: the type that the reference reads them as, and values that mean something."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH_NAMES, GGUFType, Keys, LlamaFileType, PoolingType, TokenType

from archs.keys import COUNT, ELSEWHERE, F32, FLAG, I32, MODEL, NUMBER, STRINGS, TEXT, U32, Rule
from archs.metadata import Metadata, Value, ValueType
from quants import Tensor
from quants.errors import OptionError
from quants.spelling import did_you_mean

from ..files.gguf.strings import quote
from ..files.gguf.writer import RESERVE_KEY
from .values import Kind, kind_of

TOKENS = Keys.Tokenizer.LIST

GENERAL: dict[str, Rule] = {
    **dict.fromkeys(
        ("architecture", "type", "name", "author", "version", "organization", "finetune", "basename", "description",
         "quantized_by", "size_label", "license", "license.name", "license.link", "url", "doi", "uuid", "repo_url",
         "source.url", "source.doi", "source.uuid", "source.repo_url"), TEXT),
    **dict.fromkeys(("tags", "languages"), STRINGS),
    **dict.fromkeys(("file_type", "quantization_version", "base_model.count", "dataset.count"), COUNT),
    "alignment": Rule(U32, 1), "sampling.sequence": TEXT,
    **dict.fromkeys(("sampling.top_k", "sampling.penalty_last_n", "sampling.mirostat"), Rule(I32)),
    **{f"sampling.{each}": NUMBER for each in (
        "top_p", "min_p", "xtc_probability", "xtc_threshold", "temp", "penalty_repeat", "mirostat_tau",
        "mirostat_eta")},
}  # fmt: skip
OTHER_PROGRAMS: dict[str, Rule] = {  # of models, read by llama.cpp and not by the runtime here
    **dict.fromkeys(
        ("embedding_length_out", "features_length", "expert_chunk_feed_forward_length", "experts_per_group",
         "moe_every_n_layers", "rescale_every_n_layers", "time_mix_extra_dim", "time_decay_extra_dim",
         "token_shift_count", "attention.group_norm_groups", "attention.decay_lora_rank", "attention.iclr_lora_rank",
         "attention.value_residual_mix_lora_rank", "attention.gate_lora_rank", "attention.indexer.head_count",
         "attention.indexer.key_length", "attention.indexer.top_k", "kda.head_dim", "wkv.head_size",
         "posnet.embedding_length", "posnet.block_count", "convnext.embedding_length", "convnext.block_count",
         *(f"dense_{number}_feat_{side}" for number in (2, 3) for side in ("in", "out"))), COUNT),
    **dict.fromkeys(("expert_group_scale", "rope.scaling.alpha"), NUMBER),
    **dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp"), Rule(F32, array=True, per_layer=True)),
}  # fmt: skip
OTHER_FILES: dict[str, Rule] = {
    Keys.Adapter.TYPE: TEXT, Keys.Adapter.LORA_ALPHA: NUMBER, Keys.Adapter.LORA_TASK_NAME: TEXT,
    Keys.Adapter.LORA_PROMPT_PREFIX: TEXT, Keys.Adapter.ALORA_INVOCATION_TOKENS: Rule(U32, array=True),
    Keys.IMatrix.CHUNK_COUNT: COUNT, Keys.IMatrix.CHUNK_SIZE: COUNT, Keys.IMatrix.DATASETS: STRINGS,
    Keys.Diffusion.SHIFT_LOGITS: FLAG,
}  # fmt: skip
TOKENIZER: dict[str, Rule] = {
    Keys.Tokenizer.MODEL: TEXT, Keys.Tokenizer.PRE: TEXT, Keys.Tokenizer.CHAT_TEMPLATE: TEXT,
    Keys.Tokenizer.HF_JSON: TEXT, TOKENS: STRINGS, Keys.Tokenizer.MERGES: STRINGS,
    Keys.Tokenizer.CHAT_TEMPLATES: STRINGS, Keys.Tokenizer.TOKEN_TYPE: Rule(ValueType.INT32, array=True),
    Keys.Tokenizer.SCORES: Rule(F32, array=True), Keys.Tokenizer.TOKEN_TYPE_COUNT: Rule(U32, 1),
    **dict.fromkeys(
        (Keys.Tokenizer.ADD_BOS, Keys.Tokenizer.ADD_EOS, Keys.Tokenizer.ADD_SEP, Keys.Tokenizer.ADD_PREFIX,
         Keys.Tokenizer.REMOVE_EXTRA_WS, "tokenizer.ggml.normalizer.nfc", "tokenizer.ggml.normalizer.lowercase",
         "tokenizer.ggml.normalizer.strip_accents", "tokenizer.huggingface.ignore_merges"), FLAG),
    "tokenizer.huggingface.added_tokens": TEXT, "tokenizer.huggingface.normalizer": TEXT, Keys.Tokenizer.RWKV: TEXT,
}  # fmt: skip
TOKENIZER_MODELS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "none", "no_vocab")  # llama.cpp's
SPECIAL_TOKENS = {  # the roles of --special-token
    "bos": Keys.Tokenizer.BOS_ID, "eos": Keys.Tokenizer.EOS_ID, "unk": Keys.Tokenizer.UNK_ID,
    "sep": Keys.Tokenizer.SEP_ID, "pad": Keys.Tokenizer.PAD_ID, "mask": Keys.Tokenizer.MASK_ID,
    "eot": Keys.Tokenizer.EOT_ID, "eom": Keys.Tokenizer.EOM_ID, "cls": "tokenizer.ggml.cls_token_id",
    "fim_pre": Keys.Tokenizer.FIM_PRE_ID, "fim_suf": Keys.Tokenizer.FIM_SUF_ID,
    "fim_mid": Keys.Tokenizer.FIM_MID_ID, "fim_pad": Keys.Tokenizer.FIM_PAD_ID,
    "fim_rep": Keys.Tokenizer.FIM_REP_ID, "fim_sep": Keys.Tokenizer.FIM_SEP_ID,
}  # fmt: skip
PER_TOKEN = (Keys.Tokenizer.TOKEN_TYPE, Keys.Tokenizer.SCORES)
NEWER_FILE_TYPES = (41,)  # than the `gguf` package: Q2_0
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
        name = key.removeprefix(f"{architecture}.")
        return MODEL.get(name) or OTHER_PROGRAMS.get(name)
    return TOKENIZER.get(key) or ELSEWHERE.get(key) or OTHER_FILES.get(key)


def is_known(key: str, architectures: Iterable[str]) -> bool:
    """Whether any program reads the key in a model of one of these architectures."""
    if key in (RESERVE_KEY, *_constants()) or key.startswith(("split.", "quantize.imatrix.")):
        return True
    return any(rule_of(key, name) is not None for name in architectures)


@cache
def _constants() -> tuple[str, ...]:
    """The keys that the `gguf` package names without a place for something else."""
    classes, found = [Keys], []
    for each in classes:
        members = [value for name, value in vars(each).items() if not name.startswith("_")]
        classes += [member for member in members if isinstance(member, type)]
        found += [member for member in members if isinstance(member, str) and "{" not in member]
    return tuple(found)


def check_new_keys(keys: Iterable[str], metadata: Metadata, architecture: Any, new: bool) -> None:
    """Raise OptionError for a key that the file does not have and nobody reads. new: such are wanted.

    architecture: the one that the file will have, where that changes.
    """
    architectures = [name for name in (architecture_of(metadata), architecture) if isinstance(name, str) and name]
    for key in keys:
        if not key or key in metadata:
            continue
        if not re.fullmatch(r"[!-~]+", key):
            problem = f"{key!r} cannot be a key: it has spaces or is not printable ASCII"
            raise OptionError(problem, "keys look like general.name")
        if not new and not is_known(key, architectures):
            hint = _similar_keys(key, metadata, architectures)
            raise OptionError(f"no program is known to read {key!r}", f"{hint}--new adds it all the same")


def _similar_keys(key: str, metadata: Metadata, architectures: Collection[str]) -> str:
    models = (f"{name}.{each}" for name in architectures for each in (*MODEL, *OTHER_PROGRAMS))
    general = (f"general.{each}" for each in GENERAL)
    known = dict.fromkeys((*metadata, *general, *models, *TOKENIZER, *SPECIAL_TOKENS.values(), *_constants()))
    near = did_you_mean(key, known)
    return f"{near} " if near else ""


def strange_choice(key: str, value: Value, architecture: str) -> tuple[str, str | None] | None:
    """What is wrong with a value that is none of those that mean something, and what may be meant."""
    rule = rule_of(key, architecture)
    if rule is None or not rule.allows(value):
        return None
    known = _choices(key, rule)
    items = np.unique(value.data).tolist() if isinstance(value.data, np.ndarray) else [value.data]
    for item in items if known else ():
        if item not in known:
            shown = ", ".join(map(repr, known)) if len(known) < 20 else f"those that llama.cpp has ({len(known)})"
            near = did_you_mean(item, map(str, known)) if isinstance(item, str) else None
            return f"{key!r} {'has' if value.type is ValueType.ARRAY else 'is'} {item!r}; known are {shown}", near
    return None


def _choices(key: str, rule: Rule) -> Collection[str | int]:
    """All values of a key that mean something; none where they are numbers or free text."""
    if key == "general.architecture":
        from archs.registry import architectures

        return dict.fromkeys((*(each.name for each in architectures()), *MODEL_ARCH_NAMES.values()))
    if key == Keys.General.FILE_TYPE:
        guessed = int(LlamaFileType.GUESSED)
        types = {*map(int, LlamaFileType), *NEWER_FILE_TYPES} - {guessed}
        return sorted(types | {number + guessed for number in types})
    if key == Keys.Tokenizer.PRE:
        from archs.vocab.pretokenizer import table

        return table()
    if key.endswith(".pooling_type"):
        return [int(each) for each in PoolingType]
    return {
        Keys.General.TYPE: [value for name, value in vars(GGUFType).items() if not name.startswith("_")],
        Keys.Tokenizer.MODEL: TOKENIZER_MODELS, Keys.Adapter.TYPE: ("lora",),
        Keys.Tokenizer.TOKEN_TYPE: [int(each) for each in TokenType],
    }.get(key, rule.choices)  # fmt: skip


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
    further = metadata.get(f"{prefix}nextn_predict_layers", 0)  # layers at the end, which lists may leave out
    per_layer = rule is not None and rule.per_layer and value.type is ValueType.ARRAY
    if per_layer and _are_counts(layers, further) and len(value.data) not in (layers, layers - further):
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
