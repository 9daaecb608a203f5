"""The table of tensor shapes of all layer parts, in sizes that keys and other tensors give.

A shape is written as its dimensions, rows first: `"queries width"`. A dimension is a size, or a sum of products of
sizes and numbers (`2*inner+steps`); alternatives are separated by `|`. A name without suffix is that of a weight, of
its bias (which lacks the last of several dimensions), and of a tensor without any suffix. A size that no key gives is
taken from the first tensor that has it; the others have to agree.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

SUFFIXES = (".weight", ".bias", ".scale")
WHOLE = (*SUFFIXES, ".lora_a", ".lora_b")  # suffixes with which a name is complete
BARE = ("ssm_a", "ssm_d", "decision.scales")
Terms = tuple[tuple[int, tuple[str, ...]], ...]  # a sum of products of a number and sizes
Alternatives = tuple[tuple[Terms, ...], ...]


@dataclass(frozen=True)
class Part:
    """A part of a layer that its family declares, or that any of the tensors `marks` shows.

    needs: required tensors, weights where no suffix is given; alternatives are separated by |. keys: required metadata.
    ignored: tensors that files may have with it, though nothing reads them.
    """

    marks: str
    shapes: Mapping[str, str]
    needs: str = ""
    keys: str = ""
    ignored: str = ""

    def shown_by(self, roles: Collection[str]) -> bool:
        """Return whether any of the tensors that mark it is there."""
        return has(roles, self.marks)

    @cached_property
    def table(self) -> dict[str, Alternatives]:
        """Return full names of tensors with their parsed shapes."""
        parsed: dict[str, Alternatives] = {}
        for name, text in self.shapes.items():
            shapes = tuple(tuple(map(_terms, each.split())) for each in text.split("|"))
            parsed[name] = shapes
            if not name.endswith(WHOLE):
                parsed[f"{name}.weight"] = shapes
                parsed[f"{name}.bias"] = tuple(shape[:-1] if len(shape) > 1 else shape for shape in shapes)
        return parsed


def has(roles: Collection[str], names: str) -> bool:
    """Return whether there is a tensor of any of these names, with any suffix."""
    return any(f"{name}{suffix}" in roles for name in names.split() for suffix in ("", *SUFFIXES))


def _terms(dimension: str) -> Terms:
    terms = [term.split("*") for term in dimension.split("+")]
    factors = (math.prod(int(each) for each in term if each.isdigit()) for term in terms)
    return tuple(zip(factors, (tuple(each for each in term if not each.isdigit()) for term in terms), strict=True))


def full_name(name: str) -> str:
    """Return the full name of a tensor that a part needs."""
    return name if name in BARE or name.endswith(WHOLE) else f"{name}.weight"


def evaluated(terms: Terms, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a dimension; None if one of its sizes is unknown."""
    if any(name not in sizes for _, names in terms for name in names):
        return None
    return sum(factor * math.prod(sizes[name] for name in names) for factor, names in terms)


def unknown(terms: Terms, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the one unknown size of a dimension, and its factor; None if there is not exactly one."""
    (factor, names), *others = terms
    return (names[0], factor) if not others and len(names) == 1 and names[0] not in sizes else None


WIDTH_NORMS = {"attn_norm_2": "width | heads*key"} | dict.fromkeys(
    (
        "attn_norm",
        "ffn_norm",
        "post_attention_norm",
        "post_ffw_norm",
        "post_ffw_norm_1",
        "post_ffw_norm_2",
        "pre_ffw_norm_2",
        "attn_output_norm",
        "layer_output_norm",
        "ffn_norm_exps",
    ),
    "width",
)
ATTENTION = Part(
    marks="attn_q attn_k attn_v attn_output",  # delta nets have attn_qkv, too
    needs="attn_q|attn_qkv attn_k|attn_qkv attn_output",
    shapes={
        "attn_qkv": "queries+keys+values width",
        "attn_q": "queries width",
        "attn_k": "keys width",
        "attn_v": "values width",
        "attn_output": "width mixed",
        "attn_gate": "mixed width | heads width",
        "attn_q_norm": "key | heads*key | heads key | heads 1",
        "attn_output.scale": "1",
        "attn_k_norm": "key | keys | kv_heads key",
        "attn_q_norm.bias": "key | heads*key | heads key",
        "attn_k_norm.bias": "key | keys | kv_heads key",
        "attn_sub_norm": "mixed",
        "attn_sinks": "heads",
        "indexer.q_proj": "index_heads*index_key width",
        "indexer.k_proj": "index_key width",
        "indexer.q_norm": "index_key",
        "indexer.k_norm": "index_key",
    },
)
LIGHTNING = Part(  # in place of ATTENTION, for layers with a second norm and gates (MiniMax Text-01)
    marks=ATTENTION.marks,
    needs="attn_qkv attn_gate attn_norm_2 attn_output",
    shapes={"attn_qkv": "3*heads*key width", "attn_gate": "heads*key width", "attn_output": "width heads*key"},
)
BORROWING = Part(  # the keys and values of an earlier layer; its own, if any, are ignored
    marks=ATTENTION.marks,
    needs="attn_q attn_output",
    shapes={name: ATTENTION.shapes[name] for name in ("attn_q", "attn_output", "attn_q_norm")},
)
WIDENED = Part(  # latents that one matrix widens
    marks="attn_kv_b",
    ignored="attn_k_b attn_v_b",  # the same in two matrices, which some converters wrote in addition
    needs="attn_q|attn_q_a attn_q|attn_q_a_norm attn_q|attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_output",
    keys="attention.kv_lora_rank",
    shapes={
        "attn_q": "heads*key width",
        "attn_q_a": "q_rank width",
        "attn_q_a_norm": "q_rank",
        "attn_q_b": "heads*key q_rank",
        "attn_kv_a_mqa": "latent+rotated width",
        "attn_kv_a_norm": "latent",
        "attn_kv_b": "widened latent",
        "attn_output": "width widened_values",
    },
)
LATENT = Part(
    marks="attn_kv_a_mqa",
    needs="attn_q|attn_q_a attn_q|attn_q_a_norm attn_q|attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_k_b attn_v_b "
    "attn_output",
    keys="attention.kv_lora_rank attention.key_length_mla",
    shapes={
        "attn_q": "heads*key_mla width",
        "attn_q_a": "q_rank width",
        "attn_q_a_norm": "q_rank",
        "attn_q_b": "heads*key_mla q_rank",
        "attn_kv_a_mqa": "latent+rotated width",
        "attn_kv_a_norm": "latent",
        "attn_k_b": "heads latent plain",
        "attn_v_b": "heads value_mla latent",
        "attn_output": "width heads*value_mla",
        "indexer.attn_q_b": "index_heads*index_key q_rank",
        "indexer.attn_k": "index_key width",
        "indexer.k_norm": "index_key",
        "indexer.proj": "index_heads width",
        "attn_k_norm": "rotated",
        "indexer_compressor_gate": "index_key width",
        "indexer_compressor_ape": "pool index_key",
        "attn_sinks": "heads",
        "attn_gate": "heads*value_mla width | heads width",
        "attn_sub_norm": "heads*value_mla",
    },
)
COMPRESSED = Part(  # a key that is also its value, and entries for blocks of tokens
    marks="attn_kv attn_output_a attn_compressor_kv",
    needs="attn_q_a attn_q_a_norm attn_q_b attn_kv attn_kv_a_norm attn_output_a attn_output_b",
    keys="attention.q_lora_rank attention.output_group_count attention.compress_rope_freq_base",
    shapes={
        "attn_q_a": "q_rank width",
        "attn_q_a_norm": "q_rank",
        "attn_q_b": "heads*key q_rank",
        "attn_kv": "key width",
        "attn_kv_a_norm": "key",
        "attn_output_a": "o_groups*o_rank grouped",
        "attn_output_b": "width o_groups*o_rank",
        "attn_sinks": "heads",
        "attn_compressor_kv": "key width | 2*key width",
        "attn_compressor_gate": "key width | 2*key width",
        "attn_compressor_ape": "ratio key | ratio 2*key",
        "attn_compressor_norm": "key",
        "indexer.attn_q_b": "index_heads*index_key q_rank",
        "indexer.proj": "index_heads width",
        "indexer_compressor_kv": "index_key width | 2*index_key width",
        "indexer_compressor_gate": "index_key width | 2*index_key width",
        "indexer_compressor_ape": "ratio index_key | ratio 2*index_key",
        "indexer_compressor_norm": "index_key",
    },
)
CONVOLUTION = Part(
    marks="shortconv.in_proj shortconv.conv shortconv.out_proj",
    needs="shortconv.in_proj shortconv.conv shortconv.out_proj",
    shapes={
        "shortconv.in_proj": "3*width width",
        "shortconv.conv": "width cached",
        "shortconv.out_proj": "width width",
    },
)
DELTA = Part(
    marks="ssm_ba ssm_beta ssm_alpha",
    needs="attn_qkv ssm_conv1d ssm_ba|ssm_beta ssm_ba|ssm_alpha ssm_a ssm_dt.bias ssm_norm ssm_out attn_gate",
    keys="ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size",
    shapes={
        "attn_qkv": "inner+2*groups*state width",
        "ssm_conv1d": "inner+2*groups*state taps",
        "ssm_ba": "2*steps width",
        "ssm_beta": "steps width",
        "ssm_alpha": "steps width",
        "ssm_a": "steps | steps 1",
        "ssm_dt.bias": "steps",
        "ssm_norm": "head_inner",
        "ssm_out": "width inner",
        "attn_gate": "inner width",
    },
)
_KIMI_TAPS = "1 heads*kda 1 taps | heads*kda 1 taps"


@cache
def kimi_delta(forgets_by_two: bool = True, gates_by_two: bool = True) -> Part:
    """Return Kimi's delta attention, whose decay and gates come from two low-rank matrices each, or from one."""
    gates = (
        {"ssm_g_a": "gate_rank width", "ssm_g_b": "heads*kda gate_rank"}
        if gates_by_two
        else ({"ssm_g": "heads*kda width", "ssm_g_a": "heads*kda width"})
    )
    forgets = {"ssm_f_a": "forget_rank width", "ssm_f_b": "heads*kda forget_rank"}
    return Part(
        marks="ssm_f_a ssm_f_b ssm_conv1d_q",
        keys="kda.head_dim",
        needs="attn_q attn_k attn_v ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v ssm_f_a ssm_dt.bias ssm_a ssm_beta "
        f"ssm_norm {'ssm_g_a' if gates_by_two else 'ssm_g|ssm_g_a'} attn_output",
        shapes={
            "attn_q": "heads*kda width",
            "attn_k": "heads*kda width",
            "attn_v": "heads*kda width",
            "ssm_conv1d_q": _KIMI_TAPS,
            "ssm_conv1d_k": _KIMI_TAPS,
            "ssm_conv1d_v": _KIMI_TAPS,
            **(forgets if forgets_by_two else {"ssm_f_a": "heads*kda width"}),
            **gates,
            "ssm_dt.bias": "heads*kda",
            "ssm_a": "1 1 heads 1 | heads 1 | heads",
            "ssm_beta": "heads width",
            "ssm_norm": "kda",
            "attn_output": "width heads*kda",
        },
    )


KIMI_DELTA = kimi_delta()
CHANNELS = Part(  # Mamba
    marks="ssm_x",
    needs="ssm_in ssm_conv1d ssm_x ssm_dt ssm_a ssm_d ssm_out",
    keys="ssm.state_size ssm.time_step_rank ssm.inner_size",
    shapes={
        "ssm_in": "2*inner width",
        "ssm_conv1d": "inner taps",
        "ssm_x": "steps+2*state inner",
        "ssm_dt": "inner steps",
        "ssm_dt_norm": "steps",
        "ssm_b_norm": "state",
        "ssm_c_norm": "state",
        "ssm_a": "inner state",
        "ssm_d": "inner",
        "ssm_out": "width inner",
    },
)
NARROW_HEADS = Part(  # in place of CHANNELS, where each head has a decay (PLaMo 2)
    marks="ssm_x",
    needs=CHANNELS.needs,
    keys=CHANNELS.keys,
    shapes={
        "ssm_dt": "steps narrow",
        "ssm_in": "2*inner width",
        "ssm_conv1d": "inner taps",
        "ssm_x": "2*state+narrow inner",
        "ssm_dt_norm": "narrow",
        "ssm_b_norm": "state",
        "ssm_c_norm": "state",
        "ssm_a": "steps",
        "ssm_d": "steps",
        "ssm_out": "width inner",
    },
)
HEADS = Part(  # Mamba-2
    marks="ssm_in ssm_conv1d ssm_a ssm_d ssm_out",
    needs="ssm_in ssm_conv1d ssm_a ssm_d ssm_out",
    keys="ssm.state_size ssm.time_step_rank ssm.inner_size",
    shapes={
        "ssm_in": "2*inner+2*groups*state+steps width",
        "ssm_conv1d": "inner+2*groups*state taps",
        "ssm_dt.bias": "steps",
        "ssm_a": "steps | steps 1",
        "ssm_d": "steps | steps 1",
        "ssm_norm": "inner | groups group_inner",
        "ssm_out": "width inner",
    },
)
_MIXTURE = "{0} width | {0} 1 1 width"
WKV = Part(  # RWKV 6
    marks="time_mix_decay_w1 time_mix_decay_w2",
    keys="wkv.head_size",
    needs="time_mix_lerp_x time_mix_lerp_fused|time_mix_lerp_w time_mix_w1 time_mix_w2 time_mix_decay "
    "time_mix_decay_w1 time_mix_decay_w2 time_mix_receptance time_mix_key time_mix_value time_mix_gate time_mix_output",
    shapes={
        **{f"time_mix_lerp_{each}": "width | 1 1 width" for each in "xwkvrg"},
        "time_mix_lerp_fused": _MIXTURE.format(5),
        "time_mix_w1": "5*mix_rank width",
        "time_mix_w2": "5 width mix_rank",
        "time_mix_first": "wkv_heads wkv",
        "time_mix_decay": "width",
        "time_mix_decay_w1": "fading_rank width",
        "time_mix_decay_w2": "width fading_rank",
        "time_mix_receptance": "width width",
        "time_mix_key": "wkv_keys width",
        "time_mix_value": "wkv_keys width",
        "time_mix_gate": "width width",
        "time_mix_ln": "width",
        "time_mix_output": "width width",
    },
)
WKV7 = Part(
    marks="time_mix_k_k time_mix_k_a time_mix_r_k",
    keys="wkv.head_size",
    needs="time_mix_lerp_fused time_mix_w0 time_mix_w1 time_mix_w2 time_mix_a0 time_mix_a1 time_mix_a2 time_mix_v0 "
    "time_mix_v1 time_mix_v2 time_mix_k_k time_mix_k_a time_mix_r_k time_mix_receptance time_mix_key time_mix_value "
    "time_mix_output",
    shapes={
        "time_mix_lerp_fused": _MIXTURE.format(6),
        **{f"time_mix_{name}": "width" for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")},
        "time_mix_w1": "decay_rank width",
        "time_mix_w2": "width decay_rank",
        "time_mix_a1": "rate_rank width",
        "time_mix_a2": "width rate_rank",
        "time_mix_v1": "value_rank width",
        "time_mix_v2": "width value_rank",
        "time_mix_g1": "wkv_gate width",
        "time_mix_g2": "width wkv_gate",
        **{f"time_mix_{name}": "width width" for name in ("receptance", "key", "value", "output")},
    },
)
WKV7_WITHOUT_GATE = replace(WKV7, shapes={**WKV7.shapes, "time_mix_lerp_fused": _MIXTURE.format(5)})
CHANNEL_MIX = Part(
    marks="channel_mix_key channel_mix_value channel_mix_lerp_k",
    needs="attn_norm_2 channel_mix_lerp_k channel_mix_key channel_mix_value",
    shapes={
        "channel_mix_lerp_k": "width | 1 1 width",
        "channel_mix_lerp_r": "width | 1 1 width",
        "channel_mix_key": "ffn width",
        "channel_mix_value": "width ffn",
        "channel_mix_receptance": "width width",
    },
)
DENSE = Part(
    marks="ffn_up ffn_down ffn_gate ffn_down_t",
    needs="ffn_up ffn_down|ffn_down_t",
    shapes={
        "ffn_up": "ffn width",
        "ffn_gate": "ffn width",
        "ffn_down": "width ffn",
        "ffn_down_t.weight": "ffn width",
        "ffn_down_t.bias": "width",
        "ffn_down.scale": "1",
        "ffn_sub_norm": "ffn",
    },
)
EXPERTS = Part(
    marks="ffn_gate_inp ffn_up_exps ffn_gate_exps ffn_down_exps ffn_gate_up_exps exp_probs_b",
    needs="ffn_gate_inp ffn_up_exps|ffn_gate_up_exps ffn_down_exps",
    keys="expert_used_count",
    shapes={
        "ffn_gate_inp": "experts width",
        "ffn_gate_inp.scale": "width",
        "exp_probs_b": "experts",
        "exp_probs_b.bias": "experts | 1 experts",
        "ffn_up_exps": "experts expert_ffn routed",
        "ffn_gate_exps": "experts expert_ffn routed",
        "ffn_gate_up_exps": "experts 2*expert_ffn routed",
        "ffn_down_exps": "experts routed expert_ffn",
        "ffn_down_exps.scale": "experts",
    },
)
ADJUGATE_EXPERTS = Part(  # one for each group of the others
    marks="ffn_up_chexps ffn_gate_chexps ffn_down_chexps",
    needs="ffn_up_chexps ffn_gate_chexps ffn_down_chexps ffn_gate_inp",
    keys="experts_per_group expert_group_scale",
    shapes={
        "ffn_up_chexps": "groups_of_experts chunk_ffn width",
        "ffn_gate_chexps": "groups_of_experts chunk_ffn width",
        "ffn_down_chexps": "groups_of_experts width chunk_ffn",
    },
)
NARROW_EXPERTS = Part(  # experts narrower than the model; Kimi K3's have other names
    marks="ffn_latent_down ffn_latent_up ffn_routed_down ffn_routed_up",
    needs="ffn_latent_down|ffn_routed_down ffn_latent_up|ffn_routed_up",
    shapes={
        "ffn_latent_down": "routed width",
        "ffn_latent_up": "width routed",
        "ffn_routed_down": "routed width",
        "ffn_routed_up": "width routed",
        "ffn_routed_norm": "routed",
    },
)
SHARED_EXPERT = Part(
    marks="ffn_up_shexp ffn_gate_shexp ffn_down_shexp ffn_gate_inp_shexp",
    needs="ffn_up_shexp ffn_down_shexp",
    shapes={
        "ffn_up_shexp": "shared_ffn width",
        "ffn_gate_shexp": "shared_ffn width",
        "ffn_down_shexp": "width shared_ffn",
        "ffn_gate_inp_shexp.weight": "width | 1 width",
    },
)
VISION_EXPERT = Part(  # used for image tokens in place of the layer's own
    marks="vis_attn_qkv vis_attn_output vis_gate vis_up vis_down",
    shapes={
        "vis_attn_qkv": "queries+keys+values width",
        "vis_attn_output": "width mixed",
        "vis_gate": "ffn width",
        "vis_up": "ffn width",
        "vis_down": "width ffn",
    },
)
PREDICTOR = Part(
    marks="fc1 fc2", needs="fc1 fc2 ffn_up ffn_down_t", shapes={"fc1": "predicting width", "fc2": "ffn predicting"}
)
LAYER_INPUT = Part(
    marks="inp_gate proj post_norm",
    needs="inp_gate proj post_norm",
    shapes={"inp_gate": "per_layer width", "proj": "width per_layer", "post_norm": "width"},
)
COPIES = Part(  # Gemma 3n's alternating updates
    marks="altup_router altup_predict_coef altup_correct_coef altup_correct_scale laurel_l laurel_r",
    needs="altup_router altup_predict_coef altup_correct_coef altup_correct_scale altup_router_norm laurel_l laurel_r "
    "laurel_post_norm attn_norm ffn_norm post_attention_norm post_ffw_norm inp_gate attn_output ffn_up",
    shapes={
        "altup_router": "copies width",
        "altup_router_norm": "width",
        "altup_predict_coef": "copies*copies copies",
        "altup_correct_coef": "copies copies",
        "altup_correct_scale.weight": "width",
        "laurel_l": "low_rank width",
        "laurel_r": "width low_rank",
        "laurel_post_norm": "width",
    },
)


def _mixer(name: str, injects: bool = True) -> dict[str, str]:
    shapes = {
        f"{name}_norm.weight": "streams*width",
        f"{name}_down": "mixer_rank streams*width",
        f"{name}_up": "streams*width mixer_rank",
    }
    return shapes | ({f"{name}_inject": "streams streams*width"} if injects else {})


STREAMS = Part(  # Qwen4 Exp: several hidden states; each part of a layer reads a gated mean
    marks="hc_attn_down hc_ffn_down",
    keys="hyper_connection.count hyper_connection.low_rank",
    needs=" ".join((*_mixer("hc_attn"), *_mixer("hc_ffn"))),
    shapes={**_mixer("hc_attn"), **_mixer("hc_ffn")},
)
_BOTH, _MIXED = "2*streams", "2*streams+streams*streams"  # factors for reading and writing; between streams, too
CONNECTIONS = Part(  # DeepSeek V4, GLM-5-Next, HY V4: several hidden states; each part reads a mix
    marks="hc_attn_fn hc_ffn_fn",
    keys="hyper_connection.count",
    needs="hc_attn_fn hc_attn_base hc_attn_scale hc_ffn_fn hc_ffn_base hc_ffn_scale attn_norm ffn_norm",
    shapes={
        **{f"hc_{part}_fn": f"{_MIXED} streams*width | {_BOTH} streams*width" for part in ("attn", "ffn")},
        **{f"hc_{part}_base": f"{_MIXED} | {_BOTH}" for part in ("attn", "ffn")},
        **{f"hc_{part}_scale": "3 | 2" for part in ("attn", "ffn")},
    },
)
RESIDUALS = Part(  # Kimi K3: attention over the outputs of earlier layers
    marks="attn_res_score ffn_res_score",
    needs="attn_res_score ffn_res_score",
    keys="attn_res.block_size",
    shapes={"attn_res_score.weight": "width", "ffn_res_score.weight": "width"},
)
NGRAMS = Part(
    marks="ple_key ple_value ple_conv1d",
    needs="ple_key ple_value ple_norm_key ple_norm_query ple_norm_conv ple_conv1d",
    keys="ple.ngram_size ple.heads_per_ngram ple.conv_kernel embedding_length_per_layer_input",
    shapes={
        "ple_key": "streams*width looked_up",
        "ple_value": "width looked_up",
        "ple_norm_key.weight": "streams*width",
        "ple_norm_query.weight": "streams*width",
        "ple_norm_conv.weight": "streams*width",
        "ple_conv1d": "streams*width ngram_taps",
    },
)
# A gate without a tensor of its own has its rows before those of `up`.
FUSED_DENSE = replace(DENSE, shapes={**DENSE.shapes, "ffn_up": "2*ffn width"})
FUSED_SHARED = replace(SHARED_EXPERT, shapes={**SHARED_EXPERT.shapes, "ffn_up_shexp": "2*shared_ffn width"})
# Next to the experts of Arctic, whose width the keys give.
SQUARE = replace(DENSE, shapes=dict.fromkeys(("ffn_up", "ffn_gate", "ffn_down"), "width width"))
_ADAPTED = {
    "attn_q": "queries width",
    "attn_k": "keys width",
    "attn_v": "values width",
    "attn_output": "width mixed",
    "ffn_gate": "ffn width",
    "ffn_up": "ffn width",
    "ffn_down": "width ffn",
}
SWITCHED = Part(  # adapters inside a model (Granite Switch)
    marks=" ".join(f"{name}.lora_{each}" for name in _ADAPTED for each in "ab"),
    needs=" ".join(f"{name}.lora_{each}" for name in _ADAPTED for each in "ab"),
    keys="adapters.count",
    shapes={f"{name}.lora_a": f"1+adapters lora {shape.split()[1]}" for name, shape in _ADAPTED.items()}
    | {f"{name}.lora_b": f"1+adapters {shape.split()[0]} lora" for name, shape in _ADAPTED.items()},
)
NORMS = Part(marks="", shapes={**WIDTH_NORMS, "layer_output_scale.weight": "1"})

WITH_EXPERTS = (NARROW_EXPERTS, ADJUGATE_EXPERTS, SHARED_EXPERT)  # optional parts of layers with experts
OPTIONAL = (*WITH_EXPERTS, VISION_EXPERT, PREDICTOR, LAYER_INPUT, NGRAMS, SWITCHED)  # optional parts of any layer

_T5_ATTENTION = {"q": "heads*key width", "k": "heads*key width", "v": "heads*value width", "o": "width heads*value"}
ENCODER = Part(
    marks="",
    needs="attn_norm attn_q attn_k attn_v attn_o ffn_norm ffn_up ffn_down",
    shapes={
        **{f"attn_{letter}": shape for letter, shape in _T5_ATTENTION.items()},
        "attn_norm": "width",
        "attn_rel_b.weight": "buckets heads",
        "ffn_norm": "width",
        "ffn_up": "ffn width",
        "ffn_gate": "ffn width",
        "ffn_down": "width ffn",
    },
)
DECODER = Part(
    marks="",
    needs=f"{ENCODER.needs} cross_attn_norm cross_attn_q cross_attn_k cross_attn_v cross_attn_o",
    shapes={
        **ENCODER.shapes,
        **{f"cross_attn_{letter}": shape for letter, shape in _T5_ATTENTION.items()},
        "cross_attn_norm": "width",
    },
)

SCORING = Part(  # a layer of a decision model's head (Laya)
    marks="",
    needs="attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down",
    shapes={
        "attn_norm": "width",
        "attn_qkv": "3*width width",
        "attn_output": "width width",
        "ffn_norm": "width",
        "ffn_up": "head_ffn width",
        "ffn_down": "width head_ffn",
    },
)


def _attention(name: str) -> dict[str, str]:
    return {f"{name}_norm": "head"} | {f"{name}_{letter}": "head head" for letter in "qkvo"}


_NET = {"ffn_norm": "head", "ffn_up": "head_ffn head", "ffn_down": "head head_ffn"}
_ROUTING = _attention("cross_attn") | {"cross_attn_norm_kv": "head"} | _NET
_JOINT = _attention("attn") | _attention("cross_attn") | _NET
ROUTING_LAYER = Part(marks="", needs=" ".join(_ROUTING), shapes=_ROUTING)  # of a decision model's head (Clef)
JOINT_LAYER = Part(marks="", needs=" ".join(_JOINT), shapes=_JOINT)
_PROJECTIONS = ("memory", "question", "option_question", "global", "option_context", "option_lexical")
_AROUND = {
    **{f"decision.proj_{each}": "head width" for each in _PROJECTIONS},
    "decision.hidden_norm": "width",
    **{f"decision.{each}": "head" for each in ("option_summary_norm", "field_norm", "option_norm")},
    "token_types": "3 head",
    "decision.scorer": "head 4*head",
    "decision.scorer_out": "1 head | head",
}
JOINT_HEAD = Part(  # tensors around those layers
    marks="",
    needs=f"{' '.join(_AROUND)} decision.scales",
    keys="decision.head_count",
    shapes=_AROUND | {"decision.scales": "3"},
)
SCORER = Part(  # after them, or (Kev) after the last layer
    marks="", shapes={"cls": "width width", "cls.norm": "width", "cls.output": "scores width | width"}
)

OUTSIDE = Part(  # tensors outside of the layers
    marks="",
    needs="token_embd",
    shapes={
        "token_embd": "vocabulary embedded",
        "token_embd_proj": "width embedded",
        "token_embd_norm": "width",
        "position_embd": "positions width",
        "token_types": "kinds width",
        "per_layer_token_embd": "vocabulary layers*per_layer | ngrams per_layer",
        **_mixer("output_hc", injects=False),
        "per_layer_model_proj": "layers*per_layer embedded",
        "per_layer_proj_norm": "per_layer",
        "altup_proj": "others width width",
        "altup_unembd_proj": "others width width",
        "output_norm": "width",
        "output_res_score.weight": "width",
        "hrm.z_l_init": "width",
        "enc.output_norm": "width",
        "dec.output_norm": "width",
        "output_hc_fn": "streams streams*width",
        "output_hc_base": "streams",
        "output_hc_scale": "1",
        "output_proj": "projected width",
        "output": "vocabulary projected",
    },
)
AUDIO_OUTSIDE = Part(  # of convolutions over audio frames
    marks="",
    needs="token_embd conv1d conv1d.bias token_embd_norm output_norm output",
    keys="features_length posnet.embedding_length attention.group_norm_groups attention.group_norm_epsilon",
    shapes={
        "token_embd": "vocabulary features",
        "conv1d": "channels features 7",
        "conv1d.bias": "channels 1",
        "token_embd_norm": "channels",
        "output_norm": "channels",
        "output": "width channels",
    },
)
AUDIO_UNIT = Part(
    marks="conv1",
    needs="norm1 norm1.bias conv1 conv1.bias norm2 norm2.bias conv2 conv2.bias",
    shapes={
        "conv1": "channels channels 3",
        "conv2": "channels channels 3",
        "conv1.bias": "channels 1",
        "conv2.bias": "channels 1",
        "norm1.weight": "channels 1",
        "norm1.bias": "channels 1",
        "norm2.weight": "channels 1",
        "norm2.bias": "channels 1",
    },
)
AUDIO_ATTENTION = Part(
    marks="attn_q",
    needs=" ".join(f"attn_{name} attn_{name}.bias" for name in ("q", "k", "v", "output", "norm")),
    shapes={f"attn_{name}": "channels channels 1" for name in ("q", "k", "v", "output")}
    | {f"attn_{name}.bias": "channels 1" for name in ("q", "k", "v", "output", "norm")}
    | {"attn_norm.weight": "channels 1"},
)
SOUND_END = Part(
    marks="",
    needs="attn_norm attn_norm.bias",
    shapes={"attn_norm.weight": "channels 1", "attn_norm.bias": "channels 1"},
)
AUDIO_BLOCK = Part(
    marks="dw",
    needs="dw dw.bias norm pw1 pw2 gamma",
    shapes={
        "dw": "channels 1 7",
        "dw.bias": "channels 1",
        "norm": "channels",
        "pw1": "ffn channels",
        "pw2": "channels ffn",
        "gamma": "channels",
    },
)
AUDIO_PARTS = (AUDIO_UNIT, AUDIO_ATTENTION, AUDIO_BLOCK)
OUTSIDE_OF_LAST_TOKENS = replace(OUTSIDE, shapes={**OUTSIDE.shapes, "output": "written projected"})
