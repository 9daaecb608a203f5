"""SmolLM3: Llama's layers, every fourth of them without rope.

Reference: transformers `models/smollm3/modeling_smollm3.py`.
"""


from archs.config import windows
from archs.families.llama import LLAMA
from archs.hyper import Hyper, Keys, LayerHyper
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors

PERIOD = 4  # what files without `no_rope_layers` mean


def rope_layers(config: Config) -> list[int]:
    """1 for each layer that has rope, 0 for the others."""
    every = config["no_rope_layer_interval"]
    return config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(config["num_hidden_layers"])]


def unusual_rope_layers(config: Config) -> list[int] | None:
    """The same where it is not every fourth layer that has none (llama.cpp drops it)."""
    layers = rope_layers(config)
    return layers if layers != [int((i + 1) % PERIOD != 0) for i in range(len(layers))] else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    usual = rope_layers({"no_rope_layer_interval": PERIOD, "num_hidden_layers": keys["block_count"]})
    return {"no_rope_layers": keys.get("no_rope_layers", usual)}


def rotates(keys: Keys, index: int, own: LayerHyper) -> bool:
    """Whether a layer of a file has rope: as the file says, or else all layers but each fourth."""
    said = keys.get("attention.rope_pattern") is not None or keys.get("no_rope_layers") is not None
    return own.rotates and (said or (index + 1) % PERIOD != 0)


def numbers(keys: Keys, usual: Hyper) -> Hyper:
    return usual.with_layers(lambda index, own: {"rotates": rotates(keys, index, own)})


SMOLLM3 = LLAMA.derive(
    name="smollm3",
    hf_classes=("SmolLM3ForCausalLM", "SmolLM3Model"),
    metadata={
        "no_rope_layers": unusual_rope_layers,
        **windows(lambda config, layer: not rope_layers(config)[layer], kinds_switch=True),
    },
    defaults={
        "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": None, "max_position_embeddings": 32_768, "rope_theta": 2_000_000.0,
        "no_rope_layer_interval": PERIOD, "vocab_size": 128_256,
    },
    config_from_gguf=config_from_gguf,
    block={"numbers": numbers},
)  # fmt: skip
