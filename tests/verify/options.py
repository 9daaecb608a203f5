"""Random options of every model that we have a small checkpoint of, drawn by a seed.

What can be said in general is drawn in general: every switch and every factor that transformers' config class has, not
those that we thought of. Sizes, kinds of layers and rotary settings need rules of their own, below. A config may be one
that transformers or we refuse; whoever runs it counts that.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.archs import checkpoints
from tests.conftest import SHARED

Config = dict[str, Any]

SPECIAL = 10  # ids below are in no text: some models leave them out of attention, or have images in their place
NOT_TEXT = tuple(f"{what}_token_{end}" for what in ("audio", "image", "video") for end in ("id", "index"))
TOKENS = 44  # of each text; windows are shorter, and so are some contexts

# Entries whose class transformers does not have: published as code beside the weights, which nothing here runs.
NOT_IN_TRANSFORMERS = (
    "baichuan-7b-style",
    "dream",
    "granite-switch",
    "internlm2",
    "jina-bert-v2",
    "lfm2-bidirectional",
    "llada",
    "llada-moe",
    "llama-embed",
    "neobert",
    "rnd1",
    "smallthinker",
    "laya",
    "openjev",
    "clef",
    "qwen3-tts",
)

# Entries that are not varied, and why.
LEFT_OUT = {
    **dict.fromkeys(NOT_IN_TRANSFORMERS, "transformers has no such class"),
    "gpt-oss-mxfp4": "its weights are quantized before; gpt-oss-bf16 is the same model",
    "minimax-text-01": "it has the keys of MiniMax's own code, not those that transformers reads",
}

# Keys that change nothing when a model is read: training, output, what only generating or other tasks use.
WITHOUT_EFFECT = (
    "*dropout*",
    "*_pdrop",
    "*initializer*",
    "init_*",
    "*_init_*",
    "*_coef",
    "*jitter*",
    "output_*",
    "return_dict",
    "use_cache",
    "*_alpha_loss",
    "is_encoder_decoder",
    "add_cross_attention",
    "tie_encoder_decoder",
    "summary_*",
    "classifier_*",
    "use_mamba*",
    "use_associative_scan",
    "use_bfloat16",
    "gradient_checkpointing",
    "layerdrop",
    "rescale_prenorm_residual",
    "*_token_id",
    "seq_aux",
    "*aux_loss*",
    "fused_add_norm",
    "deterministic_flash_attn",
    "sparse_prediction",
    "decoder_bias",
    "cross_attention*",
    "pruned_heads",
    "torchscript",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_scale",
    "pretraining_tp",
    "tf_legacy_loss",
    "num_logits_to_keep",
    "chunk_size*",
    "altup_coef_clip",
    "prefix",
    "embedding_fraction",
    "moe_shared_expert_overlap",
    "causal",
    "mamba_dt_m*",
    "mamba_dt_init*",
    "use_bidirectional_attention",
    "is_gated_act",
    "dense_act_fn",
    "is_decoder",
    "qk_head_dim",
)

ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "gelu_fast", "gelu_python", "swish")

WINDOWED_APART = "attention_other_setting"  # sizes of some layers, which must fit the others

# Keys with the values that are tried; the model type's class must have the key.
CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act"), ACTIVATIONS
    ),
    "mamba_hidden_act": ("silu", "gelu"),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gelu", "gated-relu"),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "ffn_hidden_size",
            "n_inner",
            "d_ff",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "intermediate_size_mlp",
            "prefix_dense_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ),
        (24, 40, 72, 100, 128),
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), (4, 6, 8, 16)),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts", "experts_per_token"), (1, 2, 3, 4)),
    **dict.fromkeys(
        ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"), (1, 2, 3)
    ),
    "n_group": (1, 2, 4),
    "topk_group": (1, 2, 3),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), (0, 1, 2)),
    "moe_layer_end_index": (1, 2, 3),
    "moe_layer_interval": (1, 2),
    "decoder_sparse_step": (1, 2, 3),
    "interleave_moe_layer_step": (1, 2, 3),
    "mlp_only_layers": ([], [0], [1], [0, 1]),
    "expert_layer_period": (1, 2, 3),
    "expert_layer_offset": (0, 1),
    "attn_layer_period": (2, 3, 4),
    "attn_layer_offset": (0, 1),
    "moe_latent_size": (None, 16, 24),
    "compress_rates": tuple(
        {"compressed_sparse_attention": few, "heavily_compressed_attention": many}
        for few, many in ((4, 8), (2, 16), (4, 128))
    ),
    "o_groups": (1, 2, 4),
    "hc_mult": (1, 2, 4),
    "hc_sinkhorn_iters": (1, 2, 20),
    "num_hash_layers": (0, 1, 2),
    "scoring_func": ("softmax", "sigmoid"),
    "score_func": ("softmax", "sigmoid"),
    "expert_selection_fn": ("softmax", "sigmoid"),
    "shared_expert_combination_strategy": ("average", "sum"),
    "kv_lora_rank": (16, 24, 40),
    "q_lora_rank": (None, 16, 40),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), (16, 24, 32)),
    "qk_rope_head_dim": (8, 16),
    "max_position_embeddings": (16, 24, 32, 64, 256),
    "n_positions": (48, 64, 128),
    "max_seq_len": (48, 64),
    "sliding_window": (None, 1, 4, 8, 16, 24, 32, 43, 64, 256),
    "local_attention": (2, 4, 8, 10, 16),
    "attention_chunk_size": (4, 8, 12, 32),
    "max_window_layers": (0, 1, 2, 3),
    "floor_scale": (1, 2, 4, 8),
    "sliding_window_pattern": (1, 2, 3, 4),
    "global_attn_every_n_layers": (1, 2, 3),
    "prefix_dense_sliding_window_pattern": (1, 2),
    "no_rope_layer_interval": (1, 2, 3),
    "layer_switch": (2, 3, 4),
    "full_attention_interval": (1, 2, 3),
    "attn_logit_softcapping": (None, 3.0, 20.0),
    "final_logit_softcapping": (None, 2.0, 15.0),
    "clip_qkv": (None, 0.5, 1.5),
    "query_pre_attn_scalar": (8, 24, 100),
    "hc_count": (2, 3, 4),
    "hc_lowrank": (4, 12),
    "ple_conv_kernel_size": (2, 3, 4),
    "ngram_size": (2, 3, 5),
    "indexer_budget": (4, 8, 16),
    "indexer_compress_ratio": (2, 4),
    "indexer_n_heads": (8, 12),
    "logit_scale": (0.0625, 0.5, 1.7),
    "swiglu_limit": (1.0, 3.0, 7.0),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), (4, 8, 16, 24)),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"), (2, 3, 4)),
    "conv_L_cache": (2, 3, 4),
    **dict.fromkeys(("n_groups", "mamba_n_groups"), (1, 2, 4)),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), ("auto", 3, 6)),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), (8, 16, 24)),
    "linear_num_key_heads": (1, 2),
    "linear_num_value_heads": (2, 4, 6),
    "time_step_limit": ([0.0, math.inf], [0.05, 0.3], [0.0, 0.2], [0.1, math.inf]),
    "block_multiple_of": (8, 16),
    "laurel_rank": (4, 12),
    "altup_active_idx": (0, 1),
    "altup_num_inputs": (2, 3, 4),
    "num_kv_shared_layers": (0, 1, 2),
    "hidden_size_per_layer_input": (0, 8, 12),
    "relative_attention_num_buckets": (8, 16, 32),
    "relative_attention_max_distance": (12, 20, 128),
    "position_embedding_type": ("nope", "rope", "absolute"),
    "type_vocab_size": (1, 2, 3),
    "rotary_dim": (8, 12, 16),
    "num_ln_in_parallel_attn": (None, 1, 2),
    "word_embed_proj_dim": (32, 48),
    "layer_rope_theta": (),
    "post_norm_eps": (),
    "H_cycles": (1, 2, 3),
    "L_cycles": (1, 2, 3),
    "partial_rotary_factor": (0.25, 0.5, 0.75, 1.0),
    "rotary_pct": (0.25, 0.5, 1.0),
    **dict.fromkeys(("index_topk", "indexer_topk"), (2, 4, 6, 16, 64)),
    "index_n_heads": (8, 16, 32),
    **dict.fromkeys(("num_experts_per_token", "moe_top_k"), (1, 2, 3, 4)),
    "num_expert_group": (1, 2, 4),
    **dict.fromkeys(("share_expert_dim", "shared_experts_intermediate_size"), (24, 40, 72)),
    "hidden_dim": (72, 128, 200),
    "scale_emb": (1, 3, 7),
    "dim_model_base": (16, 64, 100),
    "o_lora_rank": (8, 16, 40),
    "short_conv_kernel_size": (2, 3, 4),
    "linear_head_dim": (8, 16, 24),
    "index_kpool": (2, 4, 8),
    "num_layers_per_stack": (),
    **dict.fromkeys(("expand", "mamba_expand"), (1, 2, 3)),
    "per_layer_config": (),
    WINDOWED_APART: (),
    **dict.fromkeys(
        (
            "full_attn_alpha_factor",
            "linear_attn_alpha_factor",
            "mlp_alpha_factor",
            "full_attn_beta_factor",
            "linear_attn_beta_factor",
            "mlp_beta_factor",
        ),
        (),
    ),
}

# Names that published configs have for classes that transformers writes otherwise.
WRITTEN_OTHERWISE = {"MPTForCausalLM": "MptForCausalLM", "PhiMoEForCausalLM": "PhimoeForCausalLM"}

# Wrappers that mean something else by keys which their text part leaves out than that does alone: we don't follow them.
WITH_DEFAULTS = ("voxtral",)

# Names that a base's config.json has beside those that transformers reads.
OTHER_NAMES = {
    "nomic-bert": ("n_*", "rotary_*", "max_trained_positions", "layer_norm_epsilon", "activation_function"),
    **dict.fromkeys(("mamba", "falcon-mamba"), ("d_model", "d_inner", "n_layer")),
    "minimax-text-01": ("attn_type_list", "layernorm_*", "postnorm", "shared_*", "rotary_dim"),
    "gptneox": ("partial_rotary_factor",),
    "bamba": ("attn_rotary_emb",),
    "deepseek-v4": ("quantization_config", "expert_dtype", "compress_ratios", "num_hash_layers"),
    "step3p5": (
        "use_*",
        "zero_centered",
        "norm_expert_weight",
        "moe_router_activation",
        "rope_theta",
        "partial_rotary_factors",
        "moe_layers_enum",
    ),
    "dots3-note": ("apply_*", "use_*", "*gate_type", "k_rope_only_layernorm"),
    "bailing-moe-v3": ("no_kda_lora", "moe_shared_expert_intermediate_size", "gated_attention_*"),
    "mimo-v2-flash": (
        "hybrid_*",
        "swa_*",
        "layernorm_epsilon",
        "moe_layer_freq",
        "add_*",
        "partial_rotary_factor",
        "rope_theta",
    ),
}

# Keys that transformers takes no other value of, by model type.
REFUSED = {"dbrx": ("tie_word_embeddings",), "laguna": ("moe_apply_router_weight_on_input",)}

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
FIXED_STRINGS = ("model_type", "dtype", "torch_dtype", "transformers_version")


@dataclass(frozen=True)
class Base:
    """A small checkpoint to vary: its config.json, the class that transformers runs it by, its tokenizer's files."""

    name: str
    config: Config
    hf_class: str
    tokenizer: tuple[Path, ...]


def bases() -> list[Base]:
    """Every entry of the zoo (where it is there), and of tests/data/families whose truth is transformers'."""
    zoo = [_base(path.parent, SHARED / "zoo" / "tokenizers") for path in sorted(SHARED.glob("zoo/*/spec.json"))]
    folder = checkpoints.FAMILIES
    specs = {entry: (folder / entry / "spec.json").read_text(encoding="utf-8") for entry in checkpoints.entries()}
    families = [
        family(entry)
        for entry, spec in specs.items()
        if "truth" not in json.loads(spec) and (folder / entry / "config.json").is_file()
    ]
    return [base for base in (*zoo, *families) if base.name not in LEFT_OUT]


def family(entry: str) -> Base:
    """An entry of tests/data/families."""
    return _base(checkpoints.FAMILIES / entry, checkpoints.FAMILIES / "tokenizers")


def _base(folder: Path, tokenizers: Path) -> Base:
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    config: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "text_config" in config:  # tokens in whose place there are images or sounds
        config = {
            key: value % SPECIAL if isinstance(value, int) and key.endswith(NOT_TEXT) else value
            for key, value in config.items()
        }
    for pattern in OTHER_NAMES.get(folder.name, ()):
        config = {key: value for key, value in config.items() if not fnmatch.fnmatchcase(key, pattern)}
    shared = sorted((tokenizers / spec["tokenizer"]).iterdir()) if spec.get("tokenizer") else []
    own = [
        path
        for path in sorted(folder.iterdir())
        if path.name not in checkpoints.RECORDS
        and path.suffix in (".json", ".model", ".txt")
        and not path.name.startswith(("ref", "config"))
    ]
    files = tuple(path for path in (*shared, *own) if path.name not in checkpoints.RECORDS and path.is_file())
    return Base(folder.name, config, spec.get("class") or config["architectures"][0], files)


def cases(count: int, seed: int, only: str = "") -> Iterator[tuple[str, Base, Config]]:
    """So many configs with a name each, of every base in turn, less those whose names don't begin with `only`."""
    from transformers import CONFIG_MAPPING

    known = [base for base in bases() if base.config.get("model_type") in CONFIG_MAPPING]
    for number in range(count):
        turn, base = number // len(known), known[number % len(known)]
        if (name := f"{base.name}-{seed}-{turn}").startswith(only):
            yield name, base, varied(base, Random(f"{base.name} {seed} {turn}"))


def each_option(pattern: str, only: str = "") -> Iterator[tuple[str, Base, Config]]:
    """Every option of every base by itself, of those whose keys fit the pattern: each with one other value."""
    from transformers import CONFIG_MAPPING

    for base in bases():
        if base.config.get("model_type") in CONFIG_MAPPING and base.name.startswith(only):
            draw = Draw(json.loads(json.dumps(base.config)), Random(0))
            for key in sorted(draw.known):
                others = [value for value in draw.options(key) if value != draw.known[key]]
                if others and fnmatch.fnmatchcase(key, pattern):
                    yield f"{base.name}-{key}", base, with_option(base, key, others[0])


def with_option(base: Base, key: str, value: Any) -> Config:
    """The base's config.json with one option set."""
    config: Config = json.loads(json.dumps(base.config))
    draw = Draw(config, Random(0))
    draw.put(**{key: value})
    sections(draw)
    other_names(draw)
    return config


def varied(base: Base, random: Random) -> Config:
    """The base's config.json with some options drawn anew."""
    config: Config = json.loads(json.dumps(base.config))
    draw = Draw(config, random)
    moves = [move for move in MOVES if random.random() < 0.4]
    for move in moves:
        move(draw)
    keys = [key for key in draw.known if draw.options(key)]
    random.shuffle(keys)
    for key in keys[: random.choice((0, 1, 2, 3, 4, 6, 8))]:
        draw.text[key] = random.choice(draw.options(key))
        if draw.has_default(key) and random.random() < 0.1 and base.name not in WITH_DEFAULTS:
            del draw.text[key]
    sections(draw)
    other_names(draw)
    if draw.get("ple_layer_ids"):  # its first layer is a linear one, and transformers' cache needs another one
        draw.put(layer_types=["linear_attention", *draw.get("layer_types")[1:-1], "full_attention"])
    return config


class Draw:
    """A config that is being varied. text: the language model's part; known: what that part means with defaults."""

    def __init__(self, config: Config, random: Random) -> None:
        from transformers import AutoConfig

        self.config, self.random = config, random
        config.pop("transformers_version", None)
        self.text: Config = config
        text = AutoConfig.for_model(**json.loads(json.dumps(config)))
        for inner in ("thinker_config", "text_config", "llm_config"):
            if isinstance(self.text.get(inner), dict):
                self.text, text = self.text[inner], getattr(text, inner)
        self.known: Config = {**text.to_dict(), **self.text}
        self.defaults: Config = type(text)().to_dict()
        rotary = (self.known.get("rope_parameters") or {}) | (self.text.get("rope_scaling") or {})
        self.sectioned = "mrope_section" in rotary or self.text.get("model_type") == "qwen2_5_omni_text"

    def __contains__(self, key: str) -> bool:
        return key in self.known

    def get(self, *keys: str) -> Any:
        return next((self.known[key] for key in keys if self.known.get(key) is not None), None)

    def put(self, **values: Any) -> None:
        self.text.update(values)
        self.known.update(values)

    def lists(self, length: int) -> list[tuple[str, list[Any]]]:
        """The lists with an entry for each of so many layers."""
        return [
            (key, value)
            for key, value in self.text.items()
            if isinstance(value, list)
            and len(value) == length
            and key not in ("architectures", "eos_token_id", "time_step_limit", "mlp_multipliers")
        ]

    def options(self, key: str) -> tuple[Any, ...]:
        """Values to try for this key."""
        value = self.known[key]
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in WITHOUT_EFFECT) or key in FIXED_STRINGS:
            return ()
        if key in REFUSED.get(self.text.get("model_type", ""), ()):
            return ()
        if key == "max_position_embeddings" and not self.known.get("rope_parameters"):
            return (64, 80, 128)  # of learnt positions
        if key in CHOICES:
            return _per_layer(value, CHOICES[key])
        if isinstance(value, bool):
            return (not value,)
        if isinstance(value, float) and 0 < abs(value) < 0.01:
            return (1e-6, 1e-5, 1e-3, 1e-2)
        if isinstance(value, float):
            return tuple(round(value * factor, 4) for factor in (0.3, 0.7, 1.3, 2.0)) or (0.5,)
        if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
            return tuple([round(each * factor, 4) for each in value] for factor in (0.3, 0.7, 1.3, 2.0))
        return ()

    def has_default(self, key: str) -> bool:
        """Whether leaving this key out leaves a small model."""
        default = self.defaults.get(key)
        return key in self.text and (isinstance(default, (bool, float, str)) or default is None)


def _per_layer(value: Any, choices: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, list) and choices and not isinstance(choices[0], list):
        return tuple([choice] * len(value) for choice in choices)
    return choices


def layers(draw: Draw) -> None:
    """Another number of layers; lists with an entry a layer keep to it, with their entries drawn anew."""
    found = [key for key in LAYERS if key in draw.text and isinstance(draw.text[key], int)]
    if not found or draw.text[found[0]] > 8 or WINDOWED_APART in draw.text:
        return
    count = draw.random.choice((1, 2, 3, 4, 5))
    for key in found:
        _set_layers(draw, key, draw.random.choice((1, 2, 3)) if key == "num_decoder_layers" else count)


def _set_layers(draw: Draw, key: str, count: int) -> None:
    before = draw.text[key]
    draw.put(**{key: count})
    for name, value in draw.lists(before):
        draw.put(**{name: [draw.random.choice(value) for _ in range(count)]})


def kinds_of_layers(draw: Draw) -> None:
    """Lists with an entry a layer, drawn anew; some that transformers writes where config.json has none."""
    count = draw.get(*LAYERS)
    for name, value in draw.lists(count):
        draw.put(**{name: [draw.random.choice(value) for _ in range(count)]})
    for name in ("layer_types", "mlp_layer_types", "indexer_types"):
        value = draw.known.get(name)
        if name not in draw.text and isinstance(value, list) and draw.random.random() < 0.3:
            draw.put(**{name: [draw.random.choice(value) for _ in range(count)]})
    if any(draw.known.get("layer_rope_theta") or ()):
        base = next(filter(None, draw.known["layer_rope_theta"]))
        draw.put(layer_rope_theta=[draw.random.choice((0, base, base)) for _ in range(count)])
    if "layer_types" in draw.known and "sliding_window" in draw.known and draw.random.random() < 0.5:
        kinds = ("full_attention", "sliding_attention")
        if draw.random.random() < 0.3:
            draw.text.pop("layer_types", None)
        elif {*(draw.get("layer_types") or ())} <= {*kinds}:
            draw.put(layer_types=[draw.random.choice(kinds) for _ in range(count)])


def heads(draw: Draw) -> None:
    """Other heads, and a hidden width that fits them."""
    random = draw.random
    count, width = random.choice((1, 2, 3, 4, 6, 8)), random.choice((8, 16, 24, 32))
    names = [key for key in ("num_attention_heads", "n_head", "n_heads", "num_heads") if key in draw.text]
    if not names or "d_inner" in draw.text or WINDOWED_APART in draw.text:
        return
    if "qk_rope_head_dim" in draw.text:
        _heads_of_latents(draw, count)
        return
    sharing = random.choice([number for number in range(1, count + 1) if count % number == 0])
    draw.put(**{names[0]: count})
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if key in draw.text:
            takes_null = key in draw.defaults and draw.defaults[key] is None
            draw.put(**{key: random.choice((sharing, sharing, None)) if takes_null else sharing})
    hidden = next(key for key in ("hidden_size", "n_embd", "d_model", "dim") if key in draw.text)
    if "head_dim" in draw.known and random.random() < 0.8:
        draw.put(head_dim=width)
        if not _hidden_is_tied(draw):
            draw.put(**{hidden: count * random.choice((8, 16, 24, 32))})
    elif "d_kv" in draw.text:
        draw.put(d_kv=width)
    elif not _hidden_is_tied(draw):
        draw.put(**{hidden: count * width})


def _heads_of_latents(draw: Draw, count: int) -> None:
    """Heads that are made of one latent: as many keys as queries, and a hidden width for itself."""
    if (
        "linear_head_dim" in draw.known
        or draw.get("per_layer_config")
        or draw.get("num_key_value_heads", "num_attention_heads") != draw.get("num_attention_heads")
    ):
        return
    draw.put(num_attention_heads=count)
    if "num_key_value_heads" in draw.text:
        draw.put(num_key_value_heads=count)
    if "vision_config" not in draw.config:
        draw.put(hidden_size=draw.random.choice((32, 48, 64, 96)))


def _hidden_is_tied(draw: Draw) -> bool:
    """Whether other widths must fit the hidden one."""
    return any(key in draw.known for key in ("mamba_expand", "mamba_n_heads", "expand", "embedding_size", "conv_dim"))


def head_width_alone(draw: Draw) -> None:
    if "head_dim" in draw.known and "qk_rope_head_dim" not in draw.known:
        draw.put(head_dim=draw.random.choice((8, 16, 24, 40)))


def window_is_context(draw: Draw) -> None:
    """The window just as long as the context, or one shorter or longer."""
    if draw.get("sliding_window") is not None and draw.random.random() < 0.5:
        size = draw.random.choice((8, 16, 24))
        draw.put(sliding_window=size, max_position_embeddings=size + draw.random.choice((-1, 0, 0, 1)))


def vocabulary(draw: Draw) -> None:
    """Rows of the embedding past the tokenizer's, and of every table that has as many."""
    if isinstance(draw.text.get("vocab_size"), int):
        more = draw.random.choice((1, 7, 40))
        for key in ("vocab_size", "vocab_size_per_layer_input"):
            if isinstance(draw.text.get(key), int):
                draw.put(**{key: draw.text[key] + more})


# What stands in a config of its own inside of the language model's: DBRX's and MPT's parts.
INSIDE: dict[str, dict[str, tuple[Any, ...]]] = {
    "dbrx": {
        "attn_config": {"clip_qkv": (None, 0.5, 1.5, 8), "kv_n_heads": (1, 2, 4)},
        "ffn_config": {
            "ffn_hidden_size": (24, 40, 72, 100),
            "moe_num_experts": (4, 6, 8, 16),
            "moe_top_k": (1, 2, 3, 4),
            "moe_normalize_expert_weights": (None, 1.0),
            "ffn_act_fn": tuple({"name": name} for name in ACTIVATIONS[:4]),
        },
    },
    "mpt": {"attn_config": {"clip_qkv": (None, 0.5, 1.5), "softmax_scale": (None, 0.1, 0.4)}},
}


def inside(draw: Draw) -> None:
    """Options of parts that have a config of their own."""
    for part, options in INSIDE.get(draw.text.get("model_type", ""), {}).items():
        now = {key: value for key, value in draw.text[part].items() if draw.random.random() < 0.9 or key in NEEDED}
        drawn = {key: draw.random.choice(values) for key, values in options.items() if draw.random.random() < 0.5}
        draw.put(**{part: now | drawn})


NEEDED = ("ffn_hidden_size", "kv_n_heads", "rope_theta")  # whose usual values are large, or others, or none


def said_twice(draw: Draw) -> None:
    """What a wrapper says of its text part outside of it."""
    if draw.text is not draw.config:
        draw.config["tie_word_embeddings"] = draw.random.random() < 0.5
        if draw.random.random() < 0.3:
            draw.text.pop("tie_word_embeddings", None)


def rotary(draw: Draw) -> None:
    """Another base, another part of each head, a way of stretching; in the spelling of transformers 4 or 5."""
    if "rope_parameters" not in draw.known or "per_layer_config" in draw.text:
        return
    random = draw.random
    now = draw.get("rope_parameters") or {}
    kinds = [key for key in now if isinstance(now[key], dict) and "rope_type" in now[key]]
    plain = {"rope_type": "default", "rope_theta": random.choice((100.0, 10_000.0, 500_000.0, 12_345.5))}
    partial = next((now[key] for key in ("partial_rotary_factor",) if key in now), None)
    if partial is not None or "partial_rotary_factor" in draw.known or "rotary_pct" in draw.text:
        plain["partial_rotary_factor"] = random.choice((0.25, 0.5, 0.75, 1.0))
    sections = {"mrope_section": now["mrope_section"]} if "mrope_section" in now else {}
    width = _head_width(draw) * plain.get("partial_rotary_factor", 1.0)
    for key in ("rope_scaling", "rope_theta", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq"):
        draw.text.pop(key, None)
    if kinds:
        usual = {
            kind: plain
            if now[kind]["rope_type"] == "default" or random.random() < 0.2
            else {**now[kind], "rope_theta": plain["rope_theta"]}
            for kind in kinds
        }
        draw.put(
            rope_parameters={
                kind: {**said, **(_stretched(draw, width) if said is plain and random.random() < 0.3 else {})}
                for kind, said in usual.items()
            }
        )
        return
    stretched = {**plain, **sections, **_stretched(draw, width)}
    if random.random() < 0.5:
        draw.put(rope_parameters=stretched)
        return
    draw.put(**{"rotary_emb_base" if "rotary_pct" in draw.text else "rope_theta": stretched.pop("rope_theta")})
    if "partial_rotary_factor" in stretched:
        key = "rotary_pct" if "rotary_pct" in draw.text else "partial_rotary_factor"
        draw.put(**{key: stretched.pop("partial_rotary_factor")})
    if stretched["rope_type"] != "default" or sections:
        spelled = random.random()
        if spelled < 0.3:
            stretched["type"] = stretched.pop("rope_type")
        elif spelled < 0.5:
            stretched["type"] = stretched["rope_type"]
        draw.put(rope_scaling=stretched)
    elif random.random() < 0.3:
        draw.text["rope_scaling"] = None


def other_names(draw: Draw) -> None:
    """What has two names means one thing by both: Hunyuan's heads, and widths of its experts and of other nets."""
    if "attention_head_dim" in draw.text:
        draw.text["attention_head_dim"] = draw.text["head_dim"]
    for key in ("rope_scaling", "rope_parameters"):
        if "xdrope_section" in (said := draw.text.get(key) or {}):
            draw.text[key] = {**said, "xdrope_section": [draw.text["head_dim"] // 8] * 4}
    if draw.text.get("model_type") == "hunyuan_v1_moe":
        draw.text["moe_intermediate_size"] = [draw.text["intermediate_size"]] * draw.get(*LAYERS)


def sections(draw: Draw) -> None:
    """As many pairs in the sections of a rotation as rotate."""
    if not draw.sectioned:
        return
    key = "rope_parameters" if draw.text.get("rope_parameters") else "rope_scaling"
    now = draw.text.get(key) or {}
    share = next((said[name] for said in (now, draw.text) for name in ("partial_rotary_factor",) if name in said), 1.0)
    pairs = int(_head_width(draw) * share) // 2
    third = pairs * 3 // 8
    draw.text[key] = {
        **({} if "type" in now else {"rope_type": "default"}),
        **now,
        "mrope_section": [pairs - 2 * third, third, third],
    }


def _head_width(draw: Draw) -> int:
    if "qk_rope_head_dim" in draw.known:
        return int(draw.get("qk_rope_head_dim"))
    hidden, count = draw.get("hidden_size", "n_embd", "d_model"), draw.get("num_attention_heads", "n_head", "n_heads")
    return int(draw.get("head_dim", "attention_head_dim") or hidden // count)


def _stretched(draw: Draw, width: float) -> Config:
    """A way of stretching with its settings; nothing for none."""
    random = draw.random
    context, factor = random.choice((8, 16, 32, 64)), random.choice((1.5, 2.0, 4.0, 8.0))

    def maybe(**settings: Any) -> Config:
        return {key: value for key, value in settings.items() if random.random() < 0.4}

    kind = random.choice(("default", "default", "linear", "dynamic", "yarn", "yarn", "yarn", "llama3", "longrope"))
    if kind == "default":
        return {}
    found: Config = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found |= {"original_max_position_embeddings": context} if random.random() < 0.8 else {}
        found |= maybe(beta_fast=16, beta_slow=2, truncate=False, attention_factor=1.2)
        found |= maybe(mscale=0.7, mscale_all_dim=0.9) if random.random() < 0.5 else {}
    if kind == "llama3":
        low, high = random.choice(((1.0, 4.0), (1.0, 4.0), (2.0, 8.0), (0.5, 1.5)))
        found |= {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": context}
    if kind == "longrope":
        pairs = int(width) // 2
        found |= {"short_factor": [1 + i / 9 for i in range(pairs)], "long_factor": [1 + i / 2 for i in range(pairs)]}
        found |= {"original_max_position_embeddings": context} | maybe(attention_factor=1.25)
        if random.random() < 0.5:
            del found["factor"]
    if kind == "dynamic":
        draw.put(max_position_embeddings=random.choice((16, 32)))
    return found


MOVES: tuple[Callable[[Draw], None], ...] = (
    layers,
    kinds_of_layers,
    heads,
    head_width_alone,
    window_is_context,
    vocabulary,
    rotary,
    inside,
    said_twice,
)
