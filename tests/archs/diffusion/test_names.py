"""Names of tensors that programs refuse for their length."""

from archs.diffusion.names import too_long
from tests import diffusion_models

LLAMA, COMFYUI, SDCPP = (
    "ggml, llama.cpp and llama-quantize",
    "ComfyUI-GGUF's converter and its llama-quantize",
    "stable-diffusion.cpp",
)


def test_limits() -> None:
    assert too_long([]) == {}
    assert too_long(["a" * 63]) == {}
    assert too_long(["b" * 64, "a" * 63]) == {LLAMA: ("b" * 64,)}
    assert too_long(["c" * 127]) == {LLAMA: ("c" * 127,)}
    assert too_long(["c" * 128]) == {LLAMA: ("c" * 128,), COMFYUI: ("c" * 128,)}
    assert too_long(["d" * 159, "e" * 160]) == {
        LLAMA: ("e" * 160, "d" * 159),
        COMFYUI: ("e" * 160, "d" * 159),
        SDCPP: ("e" * 160,),
    }


def test_published_names() -> None:
    """Some names of these models are too long for stock ggml, none for programs that are made for image models."""
    found = {model: too_long(diffusion_models.shapes(model)) for model in diffusion_models.MODELS}
    assert {model for model, programs in found.items() if programs.keys() - {LLAMA}} == set()
    assert {"hyvid", "ltx2", "boogu"} <= {model for model, programs in found.items() if programs}
    assert not {"flux_dev", "sdxl", "wan_i2v", "qwen_image"} & {model for model, programs in found.items() if programs}
