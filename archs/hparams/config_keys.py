"""Types of the config.json keys that any family reads; other keys stay as they are.

A family with another meaning of a key declares it (`Architecture.keys`). null is never an error here: it counts as
absent, and whoever needs a value reports it.
"""

from collections.abc import Mapping
from typing import Any

from ..spec import ACTIVATIONS
from ..typed_json import (
    MIN_NUMBER,
    Anything,
    Either,
    Fields,
    FieldType,
    Flag,
    ListOf,
    MapOf,
    Number,
    Place,
    Text,
    Whole,
)


class BothSides(Whole):
    """A two-sided window, without the token itself: 0 and 1 both mean only the token. Files use 0 for none."""

    def read(self, value: Any, at: Place) -> int:
        return max(super().read(value, at), 1)


MAX_LAYERS = 10_000  # where no tensors tell

FLAG, TEXT, ANYTHING = Flag(), Text(max_length=200), Anything()
LAYERS = Whole(1, MAX_LAYERS, limit="layers")
SOME_LAYERS = Whole(0, MAX_LAYERS)
PERIOD = Whole(1)
MAX_SIZE = 1 << 20
SIZE = Whole(1, MAX_SIZE, limit="rows")  # widths and counts bounded by the rows or columns of some tensor
SOME = Whole(0, MAX_SIZE, limit="rows")
NET_WIDTH = Whole(1, 1 << 24, limit="values")  # may belong to nets that the model lacks
LENGTH = Whole(1)  # of texts, in tokens
WINDOW = Whole(0)
TOKEN = Whole(0, 2**31 - 1)
POSITIVE = Number(MIN_NUMBER)
SCALE = Number(0)
EPSILON = Number(MIN_NUMBER, 1)
SHARE = Number(MIN_NUMBER, 1)
SPARSITY = Number(0, 0.9999)
BASE = Number(1)
AUTO = Either((SIZE, Text(("auto",))))
SCORING = Text(("softmax", "sigmoid"))
LAYER_TYPE = Text(
    (
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "linear_attention",
        "conv",
        "moe",
        "hybrid",
        "attention",
        "mamba",
        "mamba2",
        "mlp",
        "indexed_attention",
        "minimax_m3_sparse",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    )
)
NET = Text(("dense", "sparse"))
LABELS = MapOf(TEXT, r"-?\d{1,9}")


def by_key(table: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Return a table with a line for each key, from lines that name several keys."""
    return {key: key_type for keys, key_type in table.items() for key in keys.split()}


ROPE: dict[str, FieldType] = by_key(
    {
        "rope_type type": TEXT,
        "rope_theta": BASE,
        "partial_rotary_factor": SHARE,
        "factor attention_factor low_freq_factor high_freq_factor alpha short_mscale long_mscale": POSITIVE,
        "beta_fast beta_slow extrapolation_factor mscale mscale_all_dim llama_4_scaling_beta": SCALE,
        "original_max_position_embeddings": Whole(2),
        "long_factor short_factor": ListOf(POSITIVE),
        "mrope_section": ListOf(Whole(0, 1 << 20)),
        "truncate": FLAG,
    }
)
ROPE_BY_LAYERS: dict[str, FieldType] = ROPE | by_key({"full_attention sliding_attention main compress": Fields(ROPE)})
NEEDED_BY_SCALING = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("long_factor", "short_factor"),
    "su": ("long_factor", "short_factor"),
}

_SCHEME = Fields(
    {
        "format": TEXT,
        "weights": Fields(
            {
                "num_bits": Whole(1, 32),
                "group_size": Whole(0),
                "block_structure": Either((ListOf(Whole(1), 2), Text(form=r"\d{1,9}x\d{1,9}"))),
            }
        ),
    }
)
QUANTIZATION: dict[str, FieldType] = by_key(
    {  # keys of all quantization methods that are read
        "quant_method checkpoint_format packing_format format quant_algo version linear_class quantization_mode": TEXT,
        "is_marlin_format load_in_4bit load_in_8bit use_rms_norm": FLAG,
        "group_size q_group_size": Either((Whole(-1), TEXT)),
        "bits w_bit": Whole(1, 64),
        "weight_block_size": ListOf(Whole(1), 2),
        "config_groups": MapOf(Either((_SCHEME, ANYTHING))),
        "sparsity_config": Fields({"format": TEXT}),
    }
)

TEXT_PARTS = ("text_config", "llm_config", "language_config", "lm_config", "lfm", "talker_config")
THINKER = "thinker_config"  # of Qwen's speaking models: holds the text part
LAYER_COUNTS = "num_hidden_layers|n_layer|n_layers|num_layers|num_transformer_layers"

KEYS: dict[str, FieldType] = by_key(
    {
        # model class
        "architectures": ListOf(TEXT, max_items=16),
        "model_type": TEXT,
        "id2label": LABELS,
        "is_decoder is_encoder_decoder tie_word_embeddings": FLAG,
        # number of layers, widths, context length
        "num_hidden_layers n_layer n_layers num_layers num_decoder_layers": LAYERS,
        "vocab_size": Whole(1, 1 << 24, limit="rows"),
        "type_vocab_size": SOME,
        "hidden_size n_embd n_embed dim d_model expansion_ratio block_multiple_of": SIZE,
        "intermediate_size intermediate_size_mlp n_inner ffn_dim hidden_dim d_ff ffn_hidden_size "
        "block_ff_dim": NET_WIDTH,
        "prefix_dense_intermediate_size hidden_size_per_layer_input": Whole(0, 1 << 24, limit="values"),
        "max_position_embeddings n_ctx n_positions max_seq_len max_sequence_length model_max_length max_length "
        "seq_length "
        "max_trained_positions": LENGTH,
        "original_max_position_embeddings": ROPE["original_max_position_embeddings"],
        "block_auto_adjust_ff_dim use_double_wide_mlp": FLAG,
        "block_ffn_dim_multiplier": POSITIVE,
        # attention
        "num_attention_heads n_head n_heads num_heads num_key_value_heads n_kv_heads num_kv_heads n_head_kv "
        "num_global_key_value_heads head_dim attention_head_dim global_head_dim d_kv v_head_dim qk_nope_head_dim "
        "qk_rope_head_dim q_lora_rank kv_lora_rank relative_attention_num_buckets": SIZE,
        "num_kv_shared_layers": Whole(0, MAX_LAYERS, limit="of layers"),
        "multi_query new_decoder_architecture parallel_attn use_parallel_residual alibi attention_k_eq_v "
        "scale_attn_weights scale_attn_by_inverse_layer_idx use_qk_norm scale_decoder_outputs "
        "use_bidirectional_attention do_layer_norm_before layer_norm_elementwise_affine prenorm "
        "apply_residual_connection_post_layernorm use_rms_norm rotary_emb_interleaved rope_interleave "
        "_remove_final_layer_norm": FLAG,
        "attn_temperature_tuning": Either((FLAG, Whole(0))),
        "floor_scale relative_attention_max_distance": LENGTH,
        "attn_scale": SCALE,
        "query_pre_attn_scalar attention_multiplier clip_qkv attn_logit_softcapping final_logit_softcapping": POSITIVE,
        "attn_config": Fields(
            {
                "alibi": FLAG,
                "alibi_bias_max": Number(1, 128),
                "clip_qkv": POSITIVE,
                "kv_n_heads": SIZE,
                "softmax_scale": POSITIVE,
                "rope_theta": BASE,
            }
        ),
        "ffn_config": Fields(
            {  # DBRX
                "ffn_hidden_size": NET_WIDTH,
                "moe_num_experts": SOME,
                "moe_top_k": SOME,
                "ffn_act_fn": Fields({"name": TEXT}),
                "moe_normalize_expert_weights": Number(),
            }
        ),
        "per_layer_config": MapOf(Fields({"head_dim": SIZE, "num_key_value_heads": SIZE}), r"\d{1,5}"),
        # layer types
        "layer_types": ListOf(LAYER_TYPE, per_layer=True),
        "layers_block_type": ListOf(LAYER_TYPE),
        "mlp_layer_types": ListOf(NET, per_layer=True),
        "hybrid_override_pattern": Text(form=rf"[M*E-]{{1,{MAX_LAYERS}}}"),
        "sliding_window local_attention": WINDOW,
        "attention_chunk_size": LENGTH,
        "sliding_window_pattern prefix_dense_sliding_window_pattern global_attn_every_n_layers full_attention_interval "
        "no_rope_layer_interval attn_layer_period moe_layer_interval interleave_moe_layer_step": PERIOD,
        "max_window_layers attn_layer_offset moe_every_n_layers": Whole(0),
        "first_k_dense_replace num_dense_layers moe_layer_start_index num_mtp_layers num_nextn_predict_layers "
        "num_hash_layers": SOME_LAYERS,
        "no_rope_layers": ListOf(Either((Whole(0, 1), FLAG)), per_layer=True),
        "full_attn_idxs": ListOf(Whole(0)),
        "use_sliding_window": FLAG,
        # rotation
        "rope_theta rope_local_base_freq global_rope_theta local_rope_theta rotary_emb_base": BASE,
        "layer_rope_theta": ListOf(SCALE, per_layer=True),
        "partial_rotary_factor rotary_pct rope_pct": SHARE,
        "rotary_emb_fraction": Number(0, 1),
        "rotary_dim": SIZE,
        "mrope_section": ROPE["mrope_section"],
        "rope_scaling rope_parameters": Fields(ROPE_BY_LAYERS),
        "position_embedding_type": TEXT,
        "feed_forward_type": TEXT,
        # norms, activations, scales
        "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon block_norm_eps mixer_rms_eps": EPSILON,
        "hidden_act hidden_activation activation_function activation mlp_hidden_act mamba_hidden_act": TEXT,
        "feed_forward_proj": Text((*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))),
        "swiglu_limit swiglu_alpha logit_scale logits_scaling embedding_multiplier residual_multiplier "
        "lm_head_multiplier attention_in_multiplier attention_out_multiplier key_multiplier ssm_in_multiplier "
        "ssm_out_multiplier": POSITIVE,
        "activation_sparsity_pattern": Either((ListOf(SPARSITY, per_layer=True), SPARSITY)),
        "altup_num_inputs": SIZE,
        "altup_active_idx": Whole(0, 3),
        "altup_correct_scale mup_enabled": FLAG,
        "mlp_multipliers": ListOf(POSITIVE, 2),
        "ssm_multipliers": ListOf(POSITIVE, 5),
        # sparse attention
        "index_n_heads index_head_dim": SIZE,
        "index_topk index_topk_blocks index_block_size": Whole(1),
        "index_local_blocks": Whole(0),
        "indexer_types": ListOf(Text(("full", "shared")), per_layer=True),
        # Qwen4 Exp
        "hc_count hc_lowrank indexer_n_heads indexer_head_dim indexer_compress_ratio heads_per_ngram "
        "ple_conv_kernel_size "
        "ple_embed_dim": SIZE,
        "indexer_budget split_ngram_parts": Whole(1),
        "ngram_size": Whole(2, 64),
        "ple_layer_ids": ListOf(Whole(1)),
        "image_token_id": TOKEN,
        "output_gate_type": TEXT,
        # DeepSeek V4
        "compress_ratios": ListOf(Whole(0, 1 << 20)),
        "compress_rates": MapOf(Whole(1, 1 << 20)),
        "compress_rope_theta": BASE,
        "o_groups o_lora_rank hc_mult": SIZE,
        "hc_sinkhorn_iters": Whole(1, 1000),
        "hc_eps": Number(0, 1),
        "hc_magnitude": POSITIVE,
        # GLM-5-Next
        "linear_lower_bound": Number(),
        "linear_head_dim linear_num_heads index_kpool": SIZE,
        "index_kpool_always_select_tail mhc": FLAG,
        # Kimi
        "linear_attn_config": Fields(
            {
                "full_attn_layers": ListOf(Whole(1)),
                "kda_layers": ListOf(Whole(1)),
                "head_dim": SIZE,
                "num_heads": SIZE,
                "short_conv_kernel_size": SIZE,
                "gate_lower_bound": Number(),
                "safe_gate": FLAG,
            }
        ),
        "attn_res_block_size": Whole(1),
        "routed_expert_hidden_size": SIZE,
        "activation_situ_beta": POSITIVE,
        "activation_situ_linear_beta": Number(),
        "qk_scale_factor output_multiplier post_norm_eps": POSITIVE,  # Muse Glimmer
        # dots3-note
        "swa_num_attention_heads swa_q_lora_rank swa_kv_lora_rank swa_qk_nope_head_dim swa_qk_rope_head_dim "
        "swa_v_head_dim": SIZE,
        "apply_mla_qkv_lora_rescale use_dsa k_rope_only_layernorm use_dynamic_rsf moe_gating_fp32": FLAG,
        "attention_gate_type swa_attention_gate_type": TEXT,
        "gate_attn_act_mode": TEXT,
        "headwise_attn_output_gate": FLAG,  # Spark
        # Ling 3
        "layer_group_size": PERIOD,
        "short_conv_kernel_size": SIZE,
        "kda_safe_gate no_kda_lora": FLAG,
        "kda_lower_bound": Number(),
        "gated_attention_proj_granularity_type moe_router_activation_func": TEXT,
        "expert_swiglu_limit_list share_expert_swiglu_limit_list": ListOf(Either((SCALE, ANYTHING))),
        "linear_head_dim linear_num_heads": SIZE,
        "num_experts_per_token num_expert_group": SOME,
        "moe_renormalize mla_use_nope": FLAG,
        # Laguna
        "num_attention_heads_per_layer": ListOf(SIZE, per_layer=True),
        "moe_routed_scaling_factor": POSITIVE,
        "moe_router_logit_softcapping": SCALE,
        "moe_apply_router_weight_on_input": FLAG,
        # Llama-Nemotron
        "block_configs": ListOf(ANYTHING, per_layer=True),
        "num_key_value_heads_per_layer": ListOf(SIZE, per_layer=True),
        # MiniCPM
        "scale_emb scale_depth dim_model_base": POSITIVE,
        "num_query_groups multi_query_group_num kv_channels": SIZE,  # CodeShell, ChatGLM
        "multi_query_attention rmsnorm post_layer_norm apply_residual_connection_post_layernorm": FLAG,
        "rope_ratio": POSITIVE,
        # MiMo
        "swa_num_key_value_heads": SIZE,
        "hybrid_layer_pattern": ListOf(Whole(0, 1), per_layer=True),
        "sliding_window_size": WINDOW,
        "swa_rope_theta": BASE,
        "layernorm_epsilon": EPSILON,
        "attention_value_scale": POSITIVE,
        # OpenELM
        "num_transformer_layers": LAYERS,
        "max_context_length": LENGTH,
        "model_dim ffn_dim_divisor": SIZE,
        "num_query_heads": ListOf(SIZE, per_layer=True),
        "ffn_multipliers": ListOf(POSITIVE, per_layer=True),
        "rope_freq_constant": BASE,
        "activation_fn_name": TEXT,
        "share_input_output_layers ffn_with_glu normalize_qk_projections": FLAG,
        # OLMo, Qwen 1, Jais
        "mlp_ratio embeddings_scale mup_embeddings_scale width_scale mup_output_alpha mup_width_scale "
        "alibi_bias_max": POSITIVE,
        "no_bias mup_scale_qk_dot_by_d scale_qk_dot_by_d": FLAG,
        "num_loops": Whole(1, 1000),
        "skip_loop_final_norm": FLAG,  # Nanbeige
        "lora_adaptations": ListOf(TEXT, max_items=1000),
        "lora_alpha": POSITIVE,
        "lora_task": TEXT,  # Jina v3
        "mtp_layers_only": FLAG,
        "decision": Fields(
            {  # made by archs.decisions
                **dict.fromkeys(("type", "folder", "head_file", "head"), TEXT),
                "template": Text(),
                "temperatures": MapOf(POSITIVE),
                "vocab": MapOf(SIZE),
                "head_rows": SIZE,
                "head_tokens": Whole(1),
                **dict.fromkeys(("head_layers", "routing_layers", "layers"), Whole(0, 1000)),
                "heads": SIZE,
            }
        ),
        # Granite Switch
        "num_adapters": Whole(1, 4096),
        "max_lora_rank projection_head_dim": SIZE,
        "control_token_gain": SCALE,
        "adapter_token_ids adapter_substitute_token_ids": ListOf(TOKEN),
        # HRM-Text
        "H_cycles L_cycles": Whole(1, 1000),
        "num_layers_per_stack": LAYERS,
        "embedding_scale initializer_range": POSITIVE,
        "prefix_lm": FLAG,
        "swin_norm": FLAG,
        "num_multi_query_heads": SIZE,  # Chameleon, CogVLM
        # Grok, Arctic, Maple
        "embedding_multiplier_scale output_multiplier_scale attn_output_multiplier scaling_factor attn_factor "
        "extrapolation_factor": POSITIVE,
        "router_logit_softcapping beta_fast beta_slow": SCALE,
        "rope_type": TEXT,
        "attn_temperature_len": Whole(-1),
        "moe_layer_frequency": PERIOD,
        "parallel_attn_mlp_res use_residual nope_on_global_attention": FLAG,
        # Step
        "num_attention_groups num_sliding_attention_heads share_expert_dim": SIZE,
        "attention_other_setting": Fields(
            {"num_attention_heads": SIZE, "num_attention_groups": SIZE, "head_dim": SIZE}
        ),
        "partial_rotary_factors": ListOf(SHARE),
        "draft_vocab_size": SIZE,
        "transformer_layer_config": ANYTHING,  # of draft models, whose keys are read first
        "mtp_layer_types": ListOf(LAYER_TYPE),
        "moe_layers_enum": Either((Text(max_length=60_000), ListOf(Whole(0)))),
        "moe_every_n_layer": Whole(1),
        "moe_router_scaling_factor": POSITIVE,
        "moe_top_k": SOME,
        "norm_expert_weight": FLAG,
        "swiglu_limits swiglu_limits_shared": ListOf(Either((SCALE, ANYTHING))),
        # experts
        "num_local_experts num_experts n_routed_experts moe_num_experts num_experts_per_tok moe_k top_k_experts "
        "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert moe_topk "
        "shared_intermediate_size "
        "shared_expert_intermediate_size moe_latent_size n_group topk_group": SOME,
        "moe_intermediate_size moe_shared_expert_intermediate_size": Whole(0, 1 << 24, limit="values"),
        "norm_topk_prob route_norm norm_head": FLAG,
        "routed_scaling_factor route_scale router_scaling_factor moe_norm_min": POSITIVE,
        "router_jitter_noise": Number(0, 1),
        "score_func score_function expert_selection_fn": SCORING,
        "scoring_func": Text((*SCORING.choices, "noaux_tc")),
        "topk_method": Text(("greedy", "group_limited_greedy", "noaux_tc")),
        "shared_expert_combination_strategy": TEXT,
        # MiniMax M3
        "sparse_attention_config": Fields(
            {
                "sparse_num_index_heads": SIZE,
                "sparse_index_dim": SIZE,
                "sparse_topk_blocks": Whole(1),
                "sparse_block_size": Whole(1),
                "sparse_local_block": Whole(0),
                "sparse_init_block": Whole(0),
                "sparse_attention_freq": ListOf(Whole(0, 1), per_layer=True),
            }
        ),
        "dense_intermediate_size": NET_WIDTH,
        "moe_layer_freq": Either((Whole(0), ListOf(Whole(0, 1)))),
        # MiniMax Text-01
        "layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha "
        "layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta full_attn_alpha_factor "
        "full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor "
        "mlp_beta_factor": POSITIVE,
        "attn_type_list": ListOf(Whole(0, 1), per_layer=True),
        "postnorm": FLAG,
        # SmallThinker
        "moe_num_primary_experts moe_num_active_primary_experts moe_ffn_hidden_size": SOME,
        "moe_primary_router_apply_softmax moe_enable_secondary_experts": FLAG,
        "sliding_window_layout rope_layout": ListOf(Whole(0, 1), per_layer=True),
        # LLaDA
        "mlp_hidden_size expert_intermediate_size": NET_WIDTH,
        "attention_layer_norm scale_logits weight_tying rope": FLAG,
        "activation_type block_type layer_norm_type": TEXT,
        # state spaces and convolutions
        "state_size d_state ssm_state_size conv_kernel d_conv conv_L_cache d_inner expand n_groups mamba_d_state "
        "mamba_d_conv mamba_d_ssm mamba_expand mamba_n_groups mamba_n_heads mamba_num_heads mamba_head_dim "
        "linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
        "linear_value_head_dim": SIZE,
        "time_step_rank dt_rank mamba_dt_rank": AUTO,
        "time_step_min mamba_dt_min": SCALE,
        "time_step_limit": ListOf(Number(0, infinite=True), 2),
        "mamba_rms_norm mamba_norm_before_gate conv_bias": FLAG,
        "attn_layer_indices": ListOf(Whole(0)),
        "attn_rotary_emb": SIZE,
        # PLaMo
        "window_size": WINDOW,
        "rope_local_theta": BASE,
        "rope_scaling_factor": POSITIVE,
        "initial_context_length": Whole(2),
        "hidden_size_per_head n_shared_head": SIZE,
        "mamba_step": Whole(1),
        "mamba_enabled": FLAG,
        # Qwen3-TTS
        "text_vocab_size": Whole(1, 1 << 24, limit="rows"),
        "codec_eos_token_id": TOKEN,
        "output_size": SIZE,
        "insert_bos_before_voice": FLAG,  # LFM2.5-Audio, Pocket TTS
        "n_embd_features group_norm_groups": SIZE,
        "n_ff": NET_WIDTH,
        "group_norm_epsilon": EPSILON,  # WavTokenizer
        "posnet convnext": Fields({"n_embd": SIZE, "n_layer": LAYERS}),
        # RWKV
        "head_size head_size_divisor a_low_rank_dim decay_low_rank_dim gate_low_rank_dim v_low_rank_dim "
        "lora_rank_tokenshift lora_rank_decay": SIZE,
        "attn": ANYTHING,
        "rescale_every": Whole(0),
        "wkv_version": Whole(1),
        "wkv_has_gate wkv_has_group_norm": FLAG,
        # tokens, parts, quantized weights
        "bos_token_id unk_token_id sep_token_id pad_token_id cls_token_id mask_token_id eot_token_id "
        "decoder_start_token_id": TOKEN,
        "eos_token_id": Either((TOKEN, ListOf(TOKEN))),
        "classifier_pooling": TEXT,
        "vision_config": Fields({"deepstack_visual_indexes": ListOf(Whole(0))}),
        "quantization_config compression_config": Fields(QUANTIZATION),
    }
)


def keys_with(own: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Return a family's table with its own meanings; the parts of wrappers have the same types."""
    table = {**KEYS, **own}
    parts: dict[str, FieldType] = dict.fromkeys(TEXT_PARTS, Fields(table))
    return table | parts | {THINKER: Fields(table | parts)}
