"""WavTokenizer's decoder: audio codes, one a frame, to a spectrum of each frame (Vocos: logarithms of magnitudes, then
phases, from which programs make samples).

Convolutions over frames, units with group norms and one with attention (posnet), and ConvNeXt's blocks; it reads a clip
as a whole. Reference: llama.cpp's converter and graph, whose script brings checkpoints into the form with a
config.json.
"""

from archs.spec import BASE, LayerSpec, Target
from archs.tensor_maps import not_exportable

UNIT: dict[str, Target] = {
    f"backbone.posnet.{{i}}.{source}": f"posnet.{{i}}.{name}"
    for source, name in (
        ("norm1", "norm1"),
        ("conv1", "conv1"),
        ("norm2", "norm2"),
        ("conv2", "conv2"),
        ("norm", "attn_norm"),
        ("q", "attn_q"),
        ("k", "attn_k"),
        ("v", "attn_v"),
        ("proj_out", "attn_output"),
    )
}
BLOCK: dict[str, Target] = {
    f"backbone.convnext.{{i}}.{source}": f"convnext.{{i}}.{name}"
    for source, name in (("dwconv", "dw"), ("norm", "norm"), ("pwconv1", "pw1"), ("pwconv2", "pw2"), ("gamma", "gamma"))
}

WAV_TOKENIZER = BASE.derive(
    name="wavtokenizer-dec",
    hf_classes=("WavTokenizerDec",),
    vocab=("none",),
    prefixes=(),
    metadata={
        "vocab_size": "vocab_size",
        "features_length": "n_embd_features",
        "feed_forward_length": "n_ff",
        "attention.group_norm_epsilon": "group_norm_epsilon",
        "attention.group_norm_groups": "group_norm_groups",
        "posnet.embedding_length": "posnet.n_embd",
        "posnet.block_count": "posnet.n_layer",
        "convnext.embedding_length": "convnext.n_embd",
        "convnext.block_count": "convnext.n_layer",
        "attention.causal": lambda config: False,
    },
    defaults={"model_type": "wavtokenizer_dec"},
    tensors={
        "backbone.embedding": "token_embd",
        "backbone.embed": "conv1d",
        "backbone.norm": "token_embd_norm",
        "backbone.final_layer_norm": "output_norm",
        "head.out": "output",
        **UNIT,
        **BLOCK,
    },
    ignored=("*codebook.cluster_size", "*codebook.embed_avg", "*codebook.inited"),
    layers_vary=True,
    activation="",
    config_from_gguf=not_exportable,
    float32=("posnet.*.norm1.weight", "posnet.*.norm2.weight"),
    block=vars(
        LayerSpec(
            norm="layer",
            rope="none",
            activation="gelu",
            gated=False,
            causal=False,
            hidden_states=True,
            convolutions=True,
        )
    ),
)
