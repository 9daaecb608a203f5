"""MiniCPM-V and MiniCPM-o before 4.6: the text model of another family, Llama, Qwen 2 or Qwen 3 by their version.
Reference: the code of these checkpoints; for 4.0 vLLM's and SGLang's `minicpmv.py`.
"""

from archs.families.llama import LLAMA
from archs.families.qwen2 import QWEN2
from archs.families.qwen3 import QWEN3
from archs.spec import Architecture, Config
from archs.tensor_maps import becomes
from quants.errors import ModelError

CLASSES = ("MiniCPMV", "MiniCPMO")


def by_version(config: Config) -> Architecture | None:
    """Return the family of a version's text model; None for Llama."""
    version = config.get("version")
    wanted = "2.5" if version is None else str(version)
    if wanted in ("2.5", "4.0", "4"):
        return None
    if wanted not in ("2.6", "4.5"):
        known = "2.5, 2.6, 4.0 and 4.5"
        raise ModelError(f"config.json has version {version!r}; of {' and '.join(CLASSES)} {known} are known")
    return OF_QWEN2 if wanted == "2.6" else OF_QWEN3


OF_LLAMA = LLAMA.derive(
    hf_classes=CLASSES,
    wrappers_refused=CLASSES,
    wrappers=(),
    prefixes=("llm", *LLAMA.prefixes),
    variant=by_version,
    config_from_gguf=becomes("LlamaForCausalLM"),
)
OF_QWEN2 = QWEN2.derive(
    hf_classes=CLASSES,
    wrappers=(),
    prefixes=("llm", *QWEN2.prefixes),
    by_variant=True,
    config_from_gguf=becomes("Qwen2ForCausalLM"),
)
OF_QWEN3 = QWEN3.derive(
    hf_classes=CLASSES,
    wrappers=(),
    prefixes=("llm", *QWEN3.prefixes),
    by_variant=True,
    config_from_gguf=becomes("Qwen3ForCausalLM"),
)
