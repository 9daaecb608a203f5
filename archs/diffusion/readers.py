"""Rules by which programs load a GGUF file of an image or video model, or don't.

As their code had it in November 2026: ComfyUI-GGUF's loader.py, ops.py and dequant.py, stable-diffusion.cpp's
model_loader.cpp and model_io, diffusers 0.42's GGUF quantizer and single-file loaders.
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quants import Tensor

from ..metadata import Metadata
from ..values import ValueType
from .image_file import (
    CONVERT,
    ERROR,
    NOTE,
    ORIGINAL,
    TAG,
    WARNING,
    Fault,
    ImageFile,
    set_tag,
    shape_faults,
    some,
    wrong_tensors,
)
from .layout import MAX_DIMENSIONS, shape_key, with_first_one
from .spec import READERS, DiffusionFamily, Reader

T = TypeVar("T")
FLOATS = ("F32", "F16")  # formats that readers take as they are, in any tensor
MODEL_PREFIX = "model.diffusion_model."

# ComfyUI-GGUF.
IMAGE_TAGS = frozenset(
    ("flux", "sd1", "sdxl", "sd3", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2", "qwen_image")
)
GUESSED_TAGS = ("pig", "cow")  # of files whose family it finds by their names
TEXT_TAGS = frozenset(("t5", "t5encoder", "llama", "qwen2vl", "qwen3", "qwen3vl", "gemma3"))
FAST = frozenset(
    [
        "BF16",
        "Q8_0",
        "Q5_1",
        "Q5_0",
        "Q4_1",
        "Q4_0",
        "Q6_K",
        "Q5_K",
        "Q4_K",
        "Q3_K",
        "Q2_K",
        "IQ4_NL",
        "IQ4_XS",
    ]  # with kernels in torch
)
SLOW = frozenset(
    ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]
)  # by gguf-py
UMT5_EMBEDDING = (256384, 4096)  # of the encoder whose vocabulary it takes from the file
UMT5_KEYS = (
    "tokens",
    "scores",
    "token_type",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "eos_token_id",
    "padding_token_id",
)
LLAMA_HEADS, LLAMA_KV_HEADS = 32, 8  # that it un-permutes any "llama" text encoder with
# Convolutions over time, with five dimensions, by globs of families.
OVER_TIME: Mapping[str, tuple[str, ...]] = {
    "wan*": (
        "patch_embedding.weight",
        "vace_patch_embedding.weight",
        "pose_patch_embedding.weight",
        "patch_embedding_pose.weight",
        "cond_encoder.weight",
        "frame_packer.proj*.weight",
    ),
    "hyvid*": ("img_in.proj.weight",),
    "joyimage": ("img_in.weight",),
    "hidream_o1": ("visual.patch_embed.proj.weight",),
}
# Tag, and a name of its files → the convolution over time that ComfyUI-GGUF's converter leaves out of them.
PATCHES: Mapping[tuple[str, str], str] = {
    ("wan", "head.modulation"): "patch_embedding.weight",
    ("hyvid", "double_blocks.0.img_attn_qkv.weight"): "img_in.proj.weight",
    ("hyvid", "double_blocks.0.img_attn.qkv.weight"): "img_in.proj.weight",
}

# stable-diffusion.cpp. Parts of names by which it finds out what a model is.
SD_SIGNATURES = (
    "double_blocks.",
    "single_transformer_blocks.",
    "joint_blocks.",
    "input_blocks.",
    "unet.down_blocks.",
    "nerf_final_layer_conv.",
    "transformer_blocks.0.img_mod.1.weight",
    "transformer_blocks.0.img_mlp.w1.weight",
    "txt_in.text_norm.weight",
    "txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.weight",
    "llm_adapter.blocks.0.cross_attn.q_proj.weight",
    "cap_embedder.0.weight",
    "layers.0.adaLN_sa_ln.weight",
    "adaln_single.emb.timestep_embedder.linear_1.bias",
    "video_patch_proj.weight",
    "blocks.0.cross_attn.norm_k.weight",
    "patch_embedder.weight",
    "img_embedder.proj1.weight",
    "self_attn.q_proj_mot_gen.weight",
    "embed_image_indicator.weight",
    "txtfusion.projector.weight",
    "text_fusion.projector.weight",
    "double_stream_layers.0.img_instruct_attn.processor.img_to_q.weight",
    "dual_time_embed.semantic_embedder.linear_1.weight",
)
MAX_NAME = 160  # characters of a name with the zero at its end; in releases of May 2026 and before 128
GGML_MAX_NAME = 64  # of stock ggml
LAST_TYPE = 40  # number of the newest format that its ggml has

# diffusers: classes whose `from_single_file` takes the published names, by family. That of Cosmos 1 looks for a name in
# the tensors that it has already removed.
CLASSES: Mapping[str, str] = {
    "flux": "FluxTransformer2DModel",
    "chroma": "ChromaTransformer2DModel",
    "flux2": "Flux2Transformer2DModel",
    "sd3": "SD3Transformer2DModel",
    "sd1": "UNet2DConditionModel",
    "sdxl": "UNet2DConditionModel",
    "sdxl_refiner": "UNet2DConditionModel",
    "aura": "AuraFlowTransformer2DModel",
    "hidream": "HiDreamImageTransformer2DModel",
    "cosmos_predict2": "CosmosTransformer3DModel",
    "ltxv": "LTXVideoTransformer3DModel",
    "ltx2": "LTX2VideoTransformer3DModel",
    "mochi": "MochiTransformer3DModel",
    "hyvid": "HunyuanVideoTransformer3DModel",
    "wan": "WanTransformer3DModel",
    "wan_vace": "WanVACETransformer3DModel",
    "wan_animate": "WanAnimateTransformer3DModel",
    "lumina2": "Lumina2Transformer2DModel",
    "z_image": "ZImageTransformer2DModel",
    "qwen_image": "QwenImageTransformer2DModel",
    "qwen_image21": "QwenImage21Transformer2DModel",
    "krea2": "Krea2Transformer2DModel",
    "ernie_image": "ErnieImageTransformer2DModel",
    "minimax_h3": "MiniMaxH3Transformer3DModel",
}
POSITIONS = "img_emb.emb_pos"  # of Wan's images
NEEDED_PREFIXES: Mapping[str, str] = {  # that those classes look for, by family
    "sd1": MODEL_PREFIX,
    "sdxl": MODEL_PREFIX,
    "sdxl_refiner": MODEL_PREFIX,
}


@dataclass(frozen=True)
class Verdict:
    """Whether a program loads a file, and what it finds wrong. reader: its short name; title: for people."""

    reader: Reader
    title: str
    faults: tuple[Fault, ...]

    @property
    def loads(self) -> bool:
        """Return True if nothing prevents the file from being loaded and giving right images."""
        return not any(fault.severity == ERROR for fault in self.faults)


def verdict(reader: Reader, file: ImageFile) -> Verdict:
    """Return whether a program loads a file of an image or video model."""
    return Verdict(reader, READERS[reader], (*_faults_of_all(reader, file), *RULES[reader](file)))


def _faults_of_all(reader: Reader, file: ImageFile) -> Iterator[Fault]:
    if file.files > 1:
        problem = f"are {file.files}, and it opens one"
        yield Fault(ERROR, "files", problem, "`gguftools merge` makes one file of them")
    yield from wrong_tensors(file)
    if file.family and (why := file.family.refused.get(reader)):
        yield Fault(ERROR, TAG, f"{file.family.title}: {why}")


def comfyui(file: ImageFile) -> Iterator[Fault]:
    """Yield what ComfyUI-GGUF finds wrong."""
    yield from _comfyui_tag(file)
    yield from shape_faults(file)
    if file.in_diffusers:
        yield Fault(ERROR, some(file.own), "the names are those of diffusers' layout", CONVERT)
    elif file.prefix not in ("", MODEL_PREFIX):
        yield Fault(
            WARNING, some(file.tensors), f"the names have the prefix {file.prefix!r}, which only ComfyUI removes"
        )
    yield from _comfyui_formats(file)
    yield from _lost_dimensions(file)
    yield from _patches(file, whole=False)


def _comfyui_tag(file: ImageFile) -> Iterator[Fault]:
    family, tag = file.family, file.tag
    if TAG in file.metadata and tag is None:
        yield Fault(ERROR, TAG, "is no text", CONVERT)
    elif tag is None or tag in GUESSED_TAGS:
        if family and family.tag == "qwen_image":
            problem = "is missing, and it takes Qwen-Image's names for Flux in diffusers' layout"
            yield Fault(ERROR, TAG, problem, set_tag(family))
        else:
            yield Fault(NOTE, TAG, f"is {tag or 'missing'}: it guesses the family by the names of tensors")
    elif tag not in IMAGE_TAGS:
        fits = family is not None and family.tag in IMAGE_TAGS and not file.in_diffusers
        remedy = set_tag(family) if family and fits else "no published tag fits: wait for a version that has it"
        yield Fault(ERROR, TAG, f"is {tag!r}; it takes {', '.join(sorted(IMAGE_TAGS))}", remedy)


def _comfyui_formats(file: ImageFile) -> Iterator[Fault]:
    """Find formats that it cannot decode, decodes slowly, or takes as bytes."""
    packed = {name: each for name, each in file.own.items() if each.format.name not in FLOATS}
    unknown = [name for name, each in packed.items() if _is_matrix(name) and each.format.name not in FAST | SLOW]
    if unknown:
        problem = f"is of type {packed[unknown[0]].format.name}, which gguf-py cannot decode ({some(unknown)})"
        yield Fault(ERROR, unknown[0], problem, "quantize the original again, to another format")
    as_bytes = [name for name, each in packed.items() if _is_taken_as_bytes(file, name, each)]
    if as_bytes:
        form = packed[as_bytes[0]].format
        problem = f"is {form.name}; a parameter of this sort is read as its bytes, and has a wrong size"
        yield Fault(ERROR, as_bytes[0], f"{problem} ({some(as_bytes)})", CONVERT)
    norms = [name for name, each in packed.items() if len(each.shape) == 1 and name.endswith(".weight")]
    if norms and not as_bytes:
        problem = f"is {packed[norms[0]].format.name}, which RMS norms read as bytes ({some(norms)})"
        yield Fault(WARNING, norms[0], problem, CONVERT)
    slow = [name for name, each in packed.items() if each.format.name in SLOW]
    reshaped = [name for name in slow if shape_key(file.prefix + name) in file.metadata]
    if reshaped:
        problem = f"is {packed[reshaped[0]].format.name}, whose decoder there ignores the published shape"
        yield Fault(ERROR, reshaped[0], f"{problem} ({some(reshaped)})", "quantize to a K format, Q8_0 or IQ4_XS")
    elif slow:
        kinds = ", ".join(sorted({packed[name].format.name for name in slow}))
        problem = f"{kinds} is decoded by numpy at every step: slow ({some(slow)})"
        yield Fault(WARNING, slow[0], problem, f"it has kernels for {', '.join(sorted(FAST))}")


def _is_matrix(name: str) -> bool:
    return name.endswith((".weight", ".bias"))


def _is_taken_as_bytes(file: ImageFile, name: str, tensor: Tensor) -> bool:
    """Return True for a packed tensor of no layer that decodes it, such as a convolution over time or of sound."""
    decodes = tensor.format.name in FAST | SLOW
    return decodes and (not _is_matrix(name) or len(file.published(name)) in (3, 5))


def _of_family(file: ImageFile, table: Mapping[str, T]) -> Iterator[T]:
    """Yield the entries of a table for the family of a file."""
    for pattern, entry in table.items():
        if file.family is not None and fnmatch.fnmatchcase(file.family.name, pattern):
            yield entry


def _lost_dimensions(file: ImageFile) -> Iterator[Fault]:
    """Find parameters that have lost their first dimension of 1."""
    shapes = {name: file.published(name) for name in file.own}
    if lost := [name for name, shape in shapes.items() if with_first_one(name, shape) != shape]:
        count = len(shapes[lost[0]])
        yield Fault(ERROR, lost[0], f"has {count} dimensions; {count + 1} were published ({some(lost)})", CONVERT)


def _patches(file: ImageFile, whole: bool) -> Iterator[Fault]:
    """Find convolutions over time that are missing or not in their published shape.

    whole: the file itself must have five dimensions, as the reader ignores the key.
    """
    for (tag, name), patches in PATCHES.items():
        if file.tag == tag and name in file.own and file.family is None and patches not in file.own:
            problem = "is missing: another converter left it out, for a second step that was not done"
            yield Fault(ERROR, patches, problem, ORIGINAL)
    patterns = [pattern for entry in _of_family(file, OVER_TIME) for pattern in entry]
    for name, tensor in file.own.items():
        if file.in_diffusers or not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        shape = tensor.shape if whole else file.published(name)
        if len(shape) < 5:
            stored = "×".join(map(str, tensor.shape))
            hint = "`gguftools convert --for diffusers` writes five dimensions" if whole else CONVERT
            key = "" if whole else f", and there is no key {shape_key(name)}"
            yield Fault(ERROR, name, f"is a convolution over time, stored as {stored}{key}", hint)


def sdcpp(file: ImageFile) -> Iterator[Fault]:
    """Yield what stable-diffusion.cpp finds wrong."""
    if file.family and "sdcpp" in file.family.refused:
        return
    if file.prefix not in ("", MODEL_PREFIX):
        yield Fault(ERROR, some(file.tensors), f"the names have the prefix {file.prefix!r}", CONVERT)
    elif not any(part in name for name in file.tensors for part in SD_SIGNATURES):
        yield Fault(ERROR, some(file.own), "it finds no model that it knows by these names")
    if file.in_diffusers:
        yield Fault(
            WARNING, some(file.own), "the names are those of diffusers' layout, which it renames in part", CONVERT
        )
    newer = [name for name, each in file.tensors.items() if each.format.ggml_type > LAST_TYPE or each.format.dialect]
    if newer:
        problem = f"is of type {file.tensors[newer[0]].format.name}, which its ggml does not have ({some(newer)})"
        yield Fault(ERROR, newer[0], problem, "quantize to a format that it has")
    for name, tensor in file.own.items():
        shape = file.published(name)
        if (
            shape != tensor.shape
            and len(shape) <= MAX_DIMENSIONS
            and _without_ones(shape) != _without_ones(tensor.shape)
        ):
            problem = f"is stored in rows of {tensor.width}, which only ComfyUI-GGUF undoes"
            yield Fault(ERROR, name, problem, "`gguftools convert --for sdcpp`")
            break
    yield from _beyond_ggml(file)
    if any(name.startswith("input_blocks.") for name in file.own):
        problem = "it tells the version by the text encoders: give it those files, too"
        yield Fault(NOTE, "the file", problem)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones, which ggml does not tell apart."""
    first = next((index for index, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _beyond_ggml(file: ImageFile) -> Iterator[Fault]:
    """Find what ggml refuses; the program's own reader then takes the file, and old releases' not with arrays."""
    beyond = [name for name, each in file.tensors.items() if len(each.shape) > MAX_DIMENSIONS or len(name) >= MAX_NAME]
    if not beyond:
        return
    tensor = file.tensors[beyond[0]]
    what = (
        f"has {len(tensor.shape)} dimensions"
        if len(tensor.shape) > MAX_DIMENSIONS
        else f"has {len(beyond[0])} characters"
    )
    arrays = [key for key in file.metadata if file.metadata.value(key).type is ValueType.ARRAY]
    if arrays:
        problem = f"{what}: releases of May 2026 and before do not load a file with it and an array ({some(arrays)})"
        yield Fault(WARNING, beyond[0], problem, "`gguftools convert --for sdcpp`")
    else:
        yield Fault(NOTE, beyond[0], f"{what}: it folds what is beyond ggml's {MAX_DIMENSIONS} dimensions")


def diffusers(file: ImageFile) -> Iterator[Fault]:
    """Yield what diffusers' `from_single_file` with GGUFQuantizationConfig finds wrong."""
    family = file.family
    if family is None:
        yield Fault(WARNING, "the file", "the class to load it with is not known here")
    elif (name := CLASSES.get(family.name)) is None:
        if "diffusers" not in family.refused:
            yield Fault(ERROR, "the file", f"no class with from_single_file loads {family.title}")
    elif not file.in_diffusers:
        yield Fault(NOTE, "the file", f"load it with {name}.from_single_file(…, config=…)")
        needed = NEEDED_PREFIXES.get(family.name, file.prefix)
        if needed != file.prefix or (file.prefix not in ("", MODEL_PREFIX) and not needed):
            problem = f"names have the prefix {file.prefix!r}; {name} looks for {needed!r}"
            yield Fault(ERROR, some(file.tensors), problem, "`gguftools convert --for diffusers`")
        if POSITIONS in file.own:
            yield Fault(
                WARNING, POSITIONS, "has no place in diffusers: the model of first and last frames is not loaded"
            )
    unread = [name for name, each in file.tensors.items() if each.format.name not in (*FLOATS, *FAST)]
    if unread:
        problem = f"is {file.tensors[unread[0]].format.name}, which its loader refuses ({some(unread)})"
        yield Fault(ERROR, unread[0], problem, f"it takes F32, F16, {', '.join(sorted(FAST))}")
    as_bytes = [name for name, each in file.own.items() if each.format.name in FAST and not _is_linear(name, each)]
    if as_bytes:
        problem = (
            f"is {file.own[as_bytes[0]].format.name}; only weights of linear layers are decoded ({some(as_bytes)})"
        )
        yield Fault(ERROR, as_bytes[0], problem, "`gguftools convert --for diffusers`, or another type: F16 or F32")
    yield from _lost_dimensions(file)
    yield from _patches(file, whole=True)
    for name, tensor in file.own.items():
        shape = file.published(name)
        if len(shape) <= MAX_DIMENSIONS and shape != tensor.shape:
            problem = f"is stored as {list(tensor.shape)}, and published as {list(shape)}: it ignores the key"
            yield Fault(ERROR, name, problem, "`gguftools convert --for diffusers`")
            break


def _is_linear(name: str, tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and name.endswith(".weight")


RULES: Mapping[Reader, Callable[[ImageFile], Iterator[Fault]]] = {
    "comfyui": comfyui,
    "sdcpp": sdcpp,
    "diffusers": diffusers,
}


def verdicts(file: ImageFile) -> tuple[Verdict, ...]:
    """Return whether each program loads a file of an image or video model."""
    return tuple(verdict(reader, file) for reader in READERS)


def text_encoder_faults(reader: Reader, metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[Fault]:
    """Yield why a program takes a file of a language model or of its encoder as no text encoder."""
    tag, file_type = metadata.get(TAG), metadata.get("general.type")
    if reader == "diffusers":
        yield Fault(ERROR, TAG, "diffusers loads text encoders with transformers, not from this file")
    elif reader == "comfyui" and file_type not in ("mmproj", "clip-vision"):
        if tag not in TEXT_TAGS:
            yield Fault(ERROR, TAG, f"is {tag!r}; as text encoders it takes {', '.join(sorted(TEXT_TAGS))}")
        heads = [metadata.get(f"llama.attention.{key}") for key in ("head_count", "head_count_kv")]
        if tag == "llama" and heads != [LLAMA_HEADS, LLAMA_KV_HEADS]:
            problem = f"heads are {heads}; it un-permutes with {LLAMA_HEADS} and {LLAMA_KV_HEADS}, which gives noise"
            yield Fault(ERROR, "llama.attention.head_count", problem)
        embedding = tensors.get("token_embd.weight")
        if tag in ("t5", "t5encoder") and embedding is not None and embedding.shape == UMT5_EMBEDDING:
            keys = [f"tokenizer.ggml.{key}" for key in UMT5_KEYS if f"tokenizer.ggml.{key}" not in metadata]
            if keys:
                remedy = "convert umT5 again, from a folder with its tokenizer"
                yield Fault(ERROR, keys[0], f"is missing: the vocabulary is made of this file ({some(keys)})", remedy)


def readers_of(family: DiffusionFamily) -> tuple[Reader, ...]:
    """Return the programs that load files of a family in a layout that they read."""
    return tuple(reader for reader in READERS if reader not in family.refused and KNOWN[reader](family))


KNOWN: Mapping[Reader, Callable[[DiffusionFamily], bool]] = {
    "comfyui": lambda family: family.tag in IMAGE_TAGS,
    "sdcpp": lambda family: True,
    "diffusers": lambda family: family.name in CLASSES,
}
