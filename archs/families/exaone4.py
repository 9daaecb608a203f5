"""EXAONE 4: norms after attention and feed-forward net only, a norm on each head of q and k; the larger model has
windows in three of four layers, and rope in those alone.

Reference: transformers `models/exaone4/modeling_exaone4.py`.
"""

from archs.config import windowed_layers
from archs.config_keys import PERIOD
from archs.families.olmo2 import OLMO2
from archs.spec import Block, Config
from archs.typed_json import Either, Text

PATTERN = {"sliding_window_pattern": Either((PERIOD, Text(form="[LG]+")))}


def window_pattern(config: Config) -> list[bool] | None:
    """Which layers have a window: by a word of L and G that is repeated, or all but every so many."""
    if not config.get("sliding_window"):
        return None
    said = config.get("sliding_window_pattern") or 4
    if isinstance(said, str):
        return windowed_layers(config, lambda layer: said[layer % len(said)] == "L")
    return windowed_layers(config, lambda layer: (layer + 1) % int(said) != 0)


EXAONE4 = OLMO2.but(
    name="exaone4",
    hf_classes=("Exaone4ForCausalLM", "Exaone4Model"),
    restored=None,
    keys=PATTERN,
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": window_pattern,
        "vocab_size": "vocab_size",
    },
    defaults={"intermediate_size": 16_384, "sliding_window": 4096, "vocab_size": 102_400},
    block=Block(rope="halves", window_period=4, rope_layers="windowed"),
)
