"""Tell what the hub's pages and `ollama run hf.co/…` call a GGUF file, by its name.

The hub takes the last name of a quantization in the file's name, without regard to case. A name that it does not know
gets no label: no button on the page, no tag to pull.
"""

import re
from pathlib import PurePosixPath

# In the hub's order: of two that begin at the same place, the first is taken (packages/tasks/src/gguf.ts of
# huggingface.js).
NAMES = (
    *("F32", "F16", "Q4_0", "Q4_1", "Q4_1_SOME_F16", "Q4_2", "Q4_3", "Q8_0", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"),
    *("IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M"),
    *("IQ4_XS", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0"),
    *("Q2_0", "Q2_K_XL", "Q3_K_XL", "Q4_K_XL", "Q5_K_XL", "Q6_K_XL", "Q8_K_XL"),
)
LABEL = re.compile(rf"(?:UD-)?(?:{'|'.join(NAMES)})(?:_[A-Z]+)?")
TYPE = re.compile(r"(?<![A-Z0-9])(?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4|NVFP4)(?:_[A-Z0-9]+)*")


def hub_label(path: str) -> str | None:
    """Return the label that the hub gives a file; None where it knows none."""
    found = LABEL.findall(PurePosixPath(path).name.upper())
    return found[-1] if found else None


def label_warning(path: str) -> str | None:
    """Return a warning where the hub gives a file no label, or another one than its name has."""
    name = PurePosixPath(path).name
    label, types = hub_label(name), TYPE.findall(name.removesuffix(".gguf").upper())
    if label is None:
        return f"{path}: the hub knows no label in this name, so that pages and `ollama run` do not list it"
    if types and types[-1] != label:
        return f"{path}: the hub reads {label} where the name has {types[-1]}"
    return None
