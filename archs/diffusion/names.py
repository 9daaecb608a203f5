"""Longest names of tensors that programs read: GGUF itself has no limit.

ComfyUI-GGUF's nodes, diffusers and the gguf package read any name.
"""

from collections.abc import Iterable, Mapping

LONGEST: Mapping[str, int] = {
    "ggml, llama.cpp and llama-quantize": 63,
    "ComfyUI-GGUF's converter and its llama-quantize": 127,
    "stable-diffusion.cpp": 159,  # 127 in older ones, such as stable-diffusion-cpp-python 0.4.7
}


def too_long(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return each program that refuses some of the names → these names, the longest first."""
    ordered = sorted(names, key=lambda name: (-len(name), name))
    refused = {program: tuple(each for each in ordered if len(each) > limit) for program, limit in LONGEST.items()}
    return {program: found for program, found in refused.items() if found}
