"""EmbeddingGemma: Gemma 3's layers with tokens that see those after them too; ends in hidden states.

Reference: transformers `models/gemma3/modeling_gemma3.py` with `use_bidirectional_attention`, where a window counts
both sides together. Without that switch the class is Gemma 3 that lacks its head.
"""


from archs.config_keys import BothSides
from archs.families.gemma3 import GEMMA3
from archs.spec import Architecture, Config


def one_way(config: Config) -> Architecture | None:
    return None if config.get("use_bidirectional_attention") else GEMMA3


GEMMA_EMBEDDING = GEMMA3.derive(
    name="gemma-embedding",
    hf_classes=("Gemma3TextModel",),
    keys={"sliding_window": BothSides()},
    defaults={"model_type": "gemma3_text", "use_bidirectional_attention": True},
    refused={"use_bidirectional_attention": False},
    variant=one_way,
    config_from_gguf=lambda keys, tensors: {"use_bidirectional_attention": True},
    block={"causal": False, "hidden_states": True},
)
