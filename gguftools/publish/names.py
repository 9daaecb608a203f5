"""Name published files so that the hub, llama.cpp and Ollama recognize what they are.

Sources: the naming convention of GGUF (docs/gguf.md of ggml), the label rule of the hub (packages/tasks/src/gguf.ts of
huggingface.js), what llama-server takes for a model (common/download.cpp of llama.cpp).
"""

import re
from dataclasses import dataclass
from typing import Literal

SHARD_DIGITS = 5
LABELS = re.sub(  # in the hub's order, which decides between two that begin alike
    " ",
    "|",
    "F32 F16 Q4_0 Q4_1 Q4_1_SOME_F16 Q4_2 Q4_3 Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M "
    "Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 Q4_0_4_4 "
    "Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0 Q2_K_XL Q3_K_XL Q4_K_XL Q5_K_XL Q6_K_XL Q8_K_XL",
)
LABEL = re.compile(f"(?:UD-)?(?:{LABELS})(?:_[A-Z]+)?")
NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
UNSAFE = re.compile(r"[^\w.+-]+", re.ASCII)

Role = Literal["model", "mmproj", "mtp", "imatrix"]


@dataclass(frozen=True)
class PublishedName:
    """The name of a published file. model: such as "Qwen3-8B"; type: a recipe or a float type."""

    model: str
    type: str
    role: Role = "model"

    @property
    def stem(self) -> str:
        if self.role == "imatrix":
            return f"{self.model}-imatrix"
        return f"{'' if self.role == 'model' else self.role + '-'}{self.model}-{self.type}"

    @property
    def file(self) -> str:
        """Return the name of a single file."""
        return f"{self.stem}.gguf"


def safe_name(name: str) -> str:
    """Return a name of a model as part of a file name: spaces and what shells mean something by become "-"."""
    return UNSAFE.sub("-", name.strip()).strip("-.") or "model"


def hub_label(file: str) -> str | None:
    """Return the quantization that the hub shows for a file's name, the last one of several; None for none."""
    labels = LABEL.findall(file.rpartition("/")[2].upper())
    return labels[-1] if labels else None


def role_of(file: str) -> Role | None:
    """Return what llama-server takes a file of this name for; None for a draft of another type."""
    name = file.rpartition("/")[2].lower()
    if not any(part in name for part in NO_MODEL):
        return "model"
    return next((role for role in ("mmproj", "imatrix", "mtp") if role in name), None)


def problems(file: str, type: str | None = None) -> list[str]:
    """Return what the hub or llama-server will get wrong about a model's file, a line each. type: what it is."""
    wrong, label = list[str](), hub_label(file)
    if label is None:
        wrong.append(f"the hub knows no label for {file}: its page will show no quantization")
    elif type is not None and label.removeprefix("UD-") != type.upper():
        wrong.append(f"the hub will show {file} as {label}, not {type}")
    if role_of(file) != "model":
        wrong.append(f"llama-server -hf does not take {file} for a model")
    return wrong
