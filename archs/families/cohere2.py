"""Command R7B and Command A: Command R with a window in three of four layers and no rope in the fourth.

Reference: transformers `models/cohere2/modeling_cohere2.py`.
"""

from archs.config import head_dim, unusual_windows
from archs.families.cohere import COHERE

PERIOD = 4  # what files without `attention.sliding_window_pattern` mean

COHERE2 = COHERE.derive(
    name="cohere2",
    hf_classes=("Cohere2ForCausalLM", "Cohere2Model"),
    metadata={
        "context_length": "max_position_embeddings",
        "rope.dimension_count": head_dim,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "vocab_size": "vocab_size",
    },
    defaults={"head_dim": head_dim, "rope_theta": 10_000.0, "sliding_window": 4096},
    block={"window_period": PERIOD, "rope_layers": "windowed"},
)
