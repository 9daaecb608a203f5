"""EXAONE 4: norms after attention and feed-forward net only, a norm on each head of q and k; the larger model has
windows in three of four layers, and rope in those alone.

Reference: transformers `models/exaone4/modeling_exaone4.py`.
"""


from archs.config import windowed_layers
from archs.families.olmo2 import OLMO2
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors
from archs.typed_json import Either, Text, Whole

PATTERN = {"sliding_window_pattern": Either((Whole(), Text(form="[LG]+")))}


def window_pattern(config: Config) -> list[bool] | None:
    """Which layers have a window: by a word of L and G that is repeated, or all but every so many."""
    if not config.get("sliding_window"):
        return None
    said = config.get("sliding_window_pattern") or 4
    if isinstance(said, str):
        return windowed_layers(config, lambda layer: said[layer % len(said)] == "L")
    return windowed_layers(config, lambda layer: (layer + 1) % int(said) != 0)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Without a window transformers must be told the kind of each layer."""
    return {} if "attention.sliding_window" in keys else {"layer_types": ["full_attention"] * keys["block_count"]}


EXAONE4 = OLMO2.derive(
    name="exaone4",
    hf_classes=("Exaone4ForCausalLM", "Exaone4Model"),
    keys=PATTERN,
    config_from_gguf=config_from_gguf,
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern,
        "vocab_size": "vocab_size",
    },
    defaults={"intermediate_size": 16_384, "sliding_window": 4096, "vocab_size": 102_400},
    block={"rope_layers": "windowed", "numbers": None},
)
