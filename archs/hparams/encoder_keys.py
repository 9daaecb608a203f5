"""Types of the config.json keys of encoders, and of a preprocessor's files."""

from ..typed_json import Anything, Either, Fields, FieldType, ListOf, Number, Whole
from .config_keys import EPSILON, FLAG, LAYERS, NET_WIDTH, POSITIVE, SIZE, TEXT, WINDOW, by_key

SIDE = Either((Whole(1, 1 << 20), ListOf(Whole(1, 1 << 20), 2)))
COLOUR = ListOf(Number(-1e6, 1e6), 3)
LAYER_LIST = ListOf(Whole(0, 10_000))

PARTS: dict[str, FieldType] = by_key(
    {
        "image_size patch_size": SIDE,
        "num_channels in_channels in_chans": Whole(1, 64),
        "depth num_hidden_layers layers encoder_layers": LAYERS,
        "embed_dim width d_model out_hidden_size projection_dim vision_output_dim mm_embed_dim audio_embed_dim": SIZE,
        "num_heads heads encoder_attention_heads": SIZE,
        "intermediate_size encoder_ffn_dim": NET_WIDTH,
        "vt_hidden_size vt_num_attention_heads": SIZE,
        "vt_intermediate_size": NET_WIDTH,
        "vt_num_hidden_layers": LAYERS,
        "init_pos_emb_height init_pos_emb_width init_pos_emb_time": Whole(1, 1 << 20),
        "merge_kernel_size": ListOf(Whole(1, 1 << 16), 2),
        "projector_ln_eps": EPSILON,
        "thinker_config": Anything(),
        "spatial_merge_size temporal_patch_size scale_factor spatial_patch_size": Whole(1, 1 << 16),
        "fullatt_block_indexes deepstack_visual_indexes": LAYER_LIST,
        "num_position_embeddings": SIZE,
        "window_size": WINDOW,
        "downsample_ratio pixel_shuffle_ratio": Number(1e-3, 1),
        "downsample_factor stack_factor insert_layer_id": Whole(0, 1 << 16),
        "min_dynamic_patch max_dynamic_patch": Whole(0, 1 << 16),
        "layer_norm_eps norm_eps rms_norm_eps": EPSILON,
        "hidden_act projector_hidden_act": TEXT,
        "use_qk_norm qk_normalization attention_bias disable_merger_proj": FLAG,
        "mlp_ratio swiglu_limit": POSITIVE,
        "pos_emb_height pos_emb_width patch_temporal merge_size understand_projector_stride": Whole(1, 1 << 16),
        "force_image_size query_num": Whole(1, 1 << 20),
        "img_token_compression_config": Fields({"spatial_merge_size": Whole(1, 1 << 16)}),
        "vision_n_layers": LAYERS,
        "vision_dim vision_n_heads": SIZE,
        "vision_inter_dim": NET_WIDTH,
        "vision_patch_size vision_downsample_ratio vision_max_n_token vision_max_wh_ratio": Whole(1, 1 << 16),
        "vision_min_pixels min_num_patches max_num_patches": Whole(1),
        "visual_token_window_size": Whole(0),
        "vit_window_attn_types": ListOf(Whole(-1, 1)),
        "encoder_attn_window_size": ListOf(Whole(0, 1 << 31)),
        "input_local_layers group_size": Whole(0, 1 << 16),
        "n_mels swa_per_block": Whole(1, 1 << 16),
        "hybrid_attention": FLAG,
        "pyramid_num_routed": ListOf(Whole(-1, 1 << 16)),
        "capacity_factor": POSITIVE,
        "whisper_config": Fields(
            {
                "d_model": SIZE,
                "encoder_ffn_dim": NET_WIDTH,
                "encoder_layers": LAYERS,
                "encoder_attention_heads": SIZE,
                "num_mel_bins": Whole(1, 1 << 16),
            }
        ),
        "downsample_rate": TEXT,
        "version": Anything(),
        "drop_vision_last_layer": FLAG,
        "deepstack_layer_map": ListOf(ListOf(Whole(-10_000, 10_000), 2)),
        "image_grid_pinpoints": ListOf(ListOf(Whole(1, 1 << 20), 2)),
        "spatial_vision_layer": Whole(-10_000, 10_000),
        "spatial_target_layers": LAYER_LIST,
        "num_mel_bins input_feat_size n_window n_window_infer": Whole(1, 1 << 16),
        "vision_feature_layer": Either((Whole(-10_000), ListOf(Whole(-10_000)))),
        "input_dim feat_in merge_factor speech_mlp_scale_factor": Whole(1, 1 << 16),
        "n_layers num_layers": LAYERS,
        "n_heads feedforward_mult context_size max_pos_emb conv_kernel_size": SIZE,
        "use_rope": FLAG,
        "cat_hidden_layers": LAYER_LIST,
        "conf_num_hidden_layers": LAYERS,
        "conf_num_attention_heads": SIZE,
        "vision_config audio_config": Anything(),
    }
)
PREPROCESSOR: dict[str, FieldType] = by_key(
    {
        "image_mean image_std": COLOUR,
        "image_seq_length": Whole(1, 1 << 20),
        "size": Either(
            (
                Fields({key: Whole(1, 1 << 24) for key in ("longest_edge", "shortest_edge", "height", "width")}),
                Anything(),
            )
        ),
        "patch_size": Either((Whole(1, 1 << 16), Fields({"height": Whole(1, 1 << 16), "width": Whole(1, 1 << 16)}))),
        "merge_size scale_resolution": Whole(1, 1 << 16),
        "min_pixels max_pixels in_patch_limit min_image_tokens max_image_tokens": Whole(1),
        "min_num_patches max_num_patches": Whole(1),
        "downsample_mode": TEXT,
    }
)
