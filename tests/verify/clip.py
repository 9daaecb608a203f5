"""Run encoders in llama.cpp's own runtime, and compare embeddings of the same pixels or spectrogram with ours.

    python -m tests.verify.clip SOURCE LIBRARIES [NAME …] [--write] [--record]
    GGUFTOOLS_LLAMA_CPP=SOURCE GGUFTOOLS_LLAMA_CPP_LIBRARIES=LIBRARIES pytest -m verify tests/verify/test_clip.py

SOURCE is llama.cpp's source, LIBRARIES the folder with its libmtmd (cmake's target `mtmd`); a C++ compiler makes a
program of clip.cpp beside this file. For each checkpoint of tests/data/towers, or for NAME, and each of its encoders
that run here: mmproj files of several types, each read by both. What the tables show is the least cosine of two
embeddings of a token, and the largest difference in standard deviations; --write puts the table into
docs/multimodal.md. --record writes what llama.cpp makes of MiMo's sound, which transformers has no class for, into
tests/data/towers.

llama.cpp computes convolutions and activations in float16, so that differences of some thousandths are none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import gguftools
from quants import from_array
from runtime import ops
from runtime.arrays import Ids
from runtime.mixers.attention import AttentionOptions
from runtime.multimodal import audio, encoder, layers, vision
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.layers import Vit, Weights
from runtime.multimodal.vision import VisionEncoder
from tests.archs import checkpoints
from tests.archs.checkpoints import ENCODERS
from tests.conftest import ROOT

Floats = NDArray[np.float32]
NONE = "has no such encoder"
OURS = "(does not run here)"
TYPES = {"F32": "f32", "F16": "f16", "Q8_0": "q8_0", "Q4_K_M": "f16"}  # what is written → what it is written from
PAGE, BEGIN, END = ROOT / "docs" / "multimodal.md", "<!-- begin clip -->\n", "<!-- end clip -->\n"

# Heights and widths, or frames, where the recorded ones are none or too many: of Qwen's sounds llama.cpp lets all
# pieces see each other, so that these are no more than see each other here.
GIVEN: dict[tuple[str, str], tuple[int, ...]] = {
    ("gemma4", "vision"): (96, 96),
    ("qwen3-omni", "vision"): (64, 96),
    ("qwen4-exp", "vision"): (64, 96),
    ("qwen2-5-omni", "audio"): (200,),
    ("qwen3-asr", "audio"): (700,),
    ("qwen3-omni", "audio"): (700,),
    ("meralion2", "audio"): (50,),
    ("mimo-v2-5", "audio"): (24,),
    ("ling3-vl", "vision"): (64, 96),
}


Rows = list[list[Any]]


def with_positions(config: dict[str, Any], rows: Rows) -> None:
    """llama.cpp takes a table of 70 × 70 positions for given."""
    for row in rows:
        if "position_embedding" in row[0]:
            row[2][0] = 4900


def with_another_layer(config: dict[str, Any], rows: Rows) -> None:
    """Not the layer whose output the middle head is added to, which llama.cpp takes before that."""
    config["encoder_config"]["cat_hidden_layers"] = [2]


def with_width(config: dict[str, Any], rows: Rows) -> None:
    """llama.cpp takes a width of 512 for given, and has no more positions than there are tokens of sounds."""
    config["encoder"] |= {"d_model": 512, "n_layers": 2}
    wider = {32: 512, 64: 1024}
    kept = [row for row in rows if "conformer.layers." not in row[0] or row[0].split(".")[2] in "01"]
    for row in kept:
        if row[0].startswith("conformer.layers."):
            row[2] = [4, 128] if "pos_bias" in row[0] else [wider.get(size, size) for size in row[2]]
            row[4] = 0.03 if len(row[2]) > 1 else row[4]
        elif row[0].startswith(("conformer.pre_encode.out", "audio_adapter.model.0")):
            row[2][0] = 512
        elif row[0] == "audio_adapter.model.1.weight":
            row[2][1], row[4] = 512, 0.03
        elif row[0] == "audio_embedding.embedding.weight":
            row[2][0] = 64
    rows[:] = kept


def of_640_samples(config: dict[str, Any], rows: Rows) -> None:
    """llama.cpp takes so many samples of a frame for given."""
    config["audio_config"]["audio_embed_dim"] = 640
    for row in rows:
        if row[0] == "model.embed_audio.embedding_projection.weight":
            row[2][1] = 640


def with_biases(config: dict[str, Any], rows: Rows) -> None:
    """llama.cpp reads biases of the net behind the layers."""
    rows += [["aligner.w1.bias", "BF16", [64], 0.0, 0.1], ["aligner.w2.bias", "BF16", [32], 0.0, 0.1]]


CHANGED: dict[str, Callable[[dict[str, Any], Rows], None]] = {
    "minicpm-v-4-6": with_positions,
    "granite-speech-plus": with_another_layer,
    "lfm2-audio": with_width,
    "gemma4-unified": of_640_samples,
    "deepseek-v4-vision": with_biases,
}


@dataclass(frozen=True)
class Theirs:
    """Where llama.cpp has another definition. reason: which. variant: given tensors, those by which ours computes so;
    patched: what is put in place of functions of ours; rows: which of our rows are which of theirs.
    """

    reason: str
    variant: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    patched: tuple[tuple[Any, str, Any], ...] = ()
    rows: Callable[[Floats, Floats], tuple[Floats, Floats]] = lambda ours, theirs: (ours, theirs)
    part: str = ""  # where a checkpoint has both


def class_behind(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    name = "v.position_embd.weight"
    table = tensors[name].float32()
    return {**tensors, name: from_array(name, np.roll(table.reshape(-1, table.shape[-1]), 1, axis=0))}


def transposed(ours: Floats, theirs: Floats) -> tuple[Floats, Floats]:
    side = round(len(ours) ** 0.5)
    return ours.reshape(side, side, -1).transpose(1, 0, 2).reshape(ours.shape), theirs


def moved(weights: Weights, features: Floats) -> Floats:
    return audio._positioned(weights, CONVOLVED(weights, features))


def normed_behind(weights: Weights, name: str, x: Floats) -> Floats:
    """MERaLiON's norm over all of what is stacked, with its factors for each frame."""
    if name == "mm.a.mlp.0":
        factors = (weights.values(f"mm.a.norm_pre.{part}") for part in ("weight", "bias"))
        x = ops.layer_norm(x, *(np.resize(each, x.shape[1]) for each in factors), 1e-5)
    return PROJECT(weights, name, x)


def unnormed(weights: Weights, name: str, x: Floats, eps: float, kind: str) -> Floats:
    return x if name == "mm.a.norm_pre" else NORM(weights, name, x, eps, kind)


def layer_normed(vit: Vit, weights: Weights, name: str, x: Floats) -> Floats:
    return weights.norm(name, x, vit.eps, "layer")


def at_edge(given: int, wanted: int, how: str) -> Floats:
    return SAMPLING(given, wanted, "linear" if how == "zeros" else how)


def smooth(given: int, wanted: int, how: str) -> Floats:
    return SAMPLING(given, wanted, "smooth")


def quick(vit: Vit, weights: Weights, at: str, x: Floats) -> Floats:
    return NET(replace(vit, activation="gelu_quick"), weights, at, x)


def unbiased(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: each for name, each in tensors.items() if name not in ("mm.0.bias", "mm.2.bias")}


def normed(ours: Floats, theirs: Floats) -> tuple[Floats, Floats]:
    return ours, ops.rms_norm(np.ascontiguousarray(theirs), None, 1e-5)


def kept_sinks(q: Floats, k: Floats, more: Floats) -> tuple[Floats, Floats]:
    KEPT.append(more)
    return q, k


def with_sinks(
    q: Floats, k: Floats, v: Floats, at: Ids, scale: float, options: AttentionOptions, **more: Any
) -> Floats:
    options = replace(options, sinks=KEPT.pop() * np.float32(scale) if KEPT else None)
    return ATTEND(q, k, v, at, scale, options, **more)


KEPT: list[Floats] = []
ATTEND, SAMPLING, NET = layers.attend, encoder.sampling, Vit._net
CONVOLVED, PROJECT, NORM = audio._convolved, Weights.project, Weights.norm
CLASS = "the class token is put behind the patches, while positions count it first"
UNTURNED = Theirs(
    "frames are not rotated, but have Whisper's positions",
    patched=((audio, "_rotation", lambda *_: None), (audio, "_convolved", moved)),
)
DIFFERENT: dict[str, Theirs] = {
    "llava-1-5": Theirs(
        f"{CLASS}; and is given instead of the first", class_behind, rows=lambda ours, theirs: (ours[1:], theirs[:-1])
    ),
    "internvl": Theirs(
        f"{CLASS}; norms of q and k are layer norms unless the encoder is 3200 wide",
        class_behind,
        ((Vit, "_head_norm", layer_normed),),
    ),
    "internvl-hf": Theirs(CLASS, class_behind),
    "llama4": Theirs("tokens of a tile stand by columns", rows=transposed),
    "glm-asr": UNTURNED,
    "glm-asr-hf": UNTURNED,
    "meralion2": Theirs(
        "frames are normed when they are stacked",
        patched=((Weights, "norm", unnormed), (Weights, "project", normed_behind)),
    ),
    "voxtral": Theirs(
        "neighbours are averaged before they are stacked",
        patched=((audio, "_whisper", partial(audio._whisper, pooled=True)),),
    ),
    "kimi-vl": Theirs(
        "half of a head's pairs rotate by columns, the other by rows, where the model's take turns; "
        "positions are stretched linearly",
        patched=((vision, "RUN", {**vision.RUN, "kimivl": vision.RUN["kimik25"]}), (encoder, "sampling", smooth)),
    ),
    "cogvlm": Theirs(f"{CLASS}; the layers' nets have a quick gelu", class_behind, ((Vit, "_net", quick),)),
    "mimo-v2-5": Theirs(
        "sinks are in the sum of a softmax alone, where the model adds them to the first patch's "
        "scores; biases behind the layers are not read, of which the published model has none",
        unbiased,
        ((layers, "_drawn_to_first", kept_sinks), (layers, "attend", with_sinks)),
        part="vision",
    ),
    "muse-glimmer": Theirs(
        "the norm behind it is the text model's; positions around the grid are those of its edge",
        patched=((encoder, "sampling", at_edge),),
        rows=normed,
    ),
}


def definition(name: str, part: str) -> Theirs:
    found = DIFFERENT.get(name, Theirs(""))
    return found if found.part in ("", part) else Theirs("")


ROUNDED = {"mimo_audio": "of two codes that are nearly as near, rounding chooses another"}  # by kind
# Why it stops at checkpoints as small as these, by kind.
STOPS = {
    "deepseekocr": "layers 2, 5, 8 and 11 of the first encoder see all, and there must be some",
    "deepseekocr2": "images have 144 or 256 tokens",
    "gemma3nv": "stages have the published widths",
    "resampler": "heads have 128 values",
    "nemotron_v2_vl": "images have 512 pixels a side",
    "gemma3na": "has no such encoder",
    **dict.fromkeys(("pockettts_spkenc", "qwen3tts_spkenc"), "takes the published sizes for given"),
}


@dataclass(frozen=True)
class Compared:
    """One encoder of a checkpoint in a file of one type. problem: why there is nothing to compare."""

    name: str
    part: str
    kind: str
    outtype: str
    cosine: float = float("nan")
    difference: float = float("nan")
    problem: str = ""
    reason: str = ""


def compiled(source: Path, libraries: Path, folder: Path) -> Path:
    """The program of clip.cpp."""
    include = [f"-I{source / part}" for part in ("tools/mtmd", "include", "ggml/include")]
    linked = [f"-L{libraries}", "-lmtmd", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    program = folder / "clip"
    command = ["c++", "-std=c++17", "-w", *include, str(Path(__file__).with_suffix(".cpp")), "-o", str(program)]
    subprocess.run([*command, *linked], check=True)
    return program


def encoded(program: Path, file: Path, part: str, given: Floats) -> Floats:
    """What llama.cpp makes of pixels (3, height, width) or a spectrogram (mels, frames): (tokens, width).

    Raises ValueError with what it says where it stops.
    """
    rows, columns = given.shape[-2:]
    values = given.transpose(1, 2, 0) if given.ndim == 3 else given
    done = subprocess.run(
        [program, file, part, str(columns), str(rows)],
        input=np.ascontiguousarray(values, "<f4").tobytes(),
        capture_output=True,
        timeout=300,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    said = done.stderr.decode(errors="replace").strip().splitlines() or [""]
    if said[-1] == "not loaded" and not any("failed to load" in line for line in said):
        raise ValueError(NONE)
    if done.returncode:
        telling = [line for line in said if any(word in line for word in ("ASSERT", "unable", "abort", "Failed"))]
        raise ValueError((telling or said)[-1].split("operator(): ")[-1].split("llama.cpp/")[-1])
    return np.frombuffer(done.stdout, "<f4").reshape(int(said[-1].split()[0]), -1)


def build(name: str, folder: Path) -> None:
    checkpoints.build_encoder(name, folder)
    if name in CHANGED:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        rows = json.loads((ENCODERS / name / "spec.json").read_text(encoding="utf-8"))["tensors"]
        CHANGED[name](config, rows)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        checkpoints.write_tensors(folder / "model.safetensors", name, rows)


def size_of(name: str, part: str) -> tuple[int, ...]:
    if (name, part) in GIVEN:
        return GIVEN[name, part]
    key = "size" if part == "vision" else "frames"
    truth = checkpoints.truth_of(name, key)
    return tuple(map(int, truth[key])) if key in truth else (56, 56)


def encoders_in(file: Path) -> Iterator[tuple[str, str, bool]]:
    """Part, kind and whether it runs here, of each encoder of a file."""
    with gguftools.open(file) as model:
        for part, run in (("vision", vision.RUN), ("audio", audio.RUN)):
            if model.metadata.get(f"clip.has_{part}_encoder"):
                kind = model.metadata.get(f"clip.{part}.projector_type", model.metadata.get("clip.projector_type"))
                yield part, str(kind), str(kind) in run


def ours(file: Path, part: str, name: str, given: Floats) -> Floats:
    """Embeddings as ours computes them, by llama.cpp's definition where it has another."""
    with gguftools.open(file) as model, ExitStack() as stack:
        theirs = definition(name, part)
        for target in theirs.patched:
            stack.enter_context(mock.patch.object(*target))
        kind = VisionEncoder if part == "vision" else AudioEncoder
        return kind(model.metadata, theirs.variant(model.tensors)).embeddings(given)


def without_fixed_rows(file: Path, theirs: Floats) -> Floats:
    """But for rows that are a tensor of the file: ends of rows or sounds, which are tokens of the text here."""
    with gguftools.open(file) as model:
        small = [each.float32().reshape(-1) for each in model.tensors.values() if each.size == theirs.shape[1]]
    kept = [row for row in theirs if not any(np.allclose(row, each, atol=1e-6) for each in small)]
    return np.stack(kept) if kept else theirs


def compared(program: Path, name: str, outtypes: Mapping[str, str] = TYPES) -> Iterator[Compared]:
    """Each encoder of a checkpoint that runs here, in files of each type."""
    with tempfile.TemporaryDirectory() as folder:
        build(name, Path(folder, name))
        for outtype, base in outtypes.items():
            file = Path(folder, f"{outtype}.gguf")
            gguftools.convert(Path(folder, name), file, base, part="mmproj")
            if base.upper() != outtype:
                whole, file = file, Path(folder, f"{outtype}-of-{base}.gguf")
                gguftools.quantize(whole, outtype, file)
            yield from of_file(program, name, outtype, file)


def of_file(program: Path, name: str, outtype: str, file: Path) -> Iterator[Compared]:
    for part, kind, runs in encoders_in(file):
        size = size_of(name, part)
        with gguftools.open(file) as model:
            mels = int(model.metadata.get("clip.audio.num_mel_bins", 0))
        mels = 640 if kind == "gemma4ua" else mels
        given = checkpoints.image(name, *size) if part == "vision" else checkpoints.sound(name, mels, size[0])
        reason = definition(name, part).reason
        try:
            theirs = encoded(program, file, part, given)
        except ValueError as error:
            yield Compared(name, part, kind, outtype, problem=str(error))
            continue
        if not runs:
            yield Compared(name, part, kind, outtype, problem=OURS)
            continue
        own = ours(file, part, name, given)
        own, theirs = definition(name, part).rows(own, theirs)
        if len(theirs) != len(own):
            theirs = without_fixed_rows(file, theirs)
        if theirs.shape != own.shape:
            yield Compared(name, part, kind, outtype, problem=f"{theirs.shape} beside our {own.shape}")
            continue
        cosines = (theirs * own).sum(1) / np.linalg.norm(theirs, axis=1) / np.linalg.norm(own, axis=1)
        difference = np.abs(theirs - own).max() / own.std()
        yield Compared(name, part, kind, outtype, float(cosines.min()), float(difference), reason=reason)


def table(found: Iterable[list[Compared]]) -> str:
    """Lines of the page: of each encoder what was found of each type."""
    lines = [f"| checkpoint | kind | {' | '.join(TYPES)} | llama.cpp |", "|---|---|" + "---|" * (len(TYPES) + 1)]
    for each in found:
        cells = ["" if one.problem else f"{one.cosine:.5f}, {one.difference:.4f}" for one in each]
        note = next((one.problem or one.reason for one in each if one.problem or one.reason), "")
        note = note or ROUNDED.get(each[0].kind, "")
        if each[0].problem and note != OURS:
            said = STOPS.get(each[0].kind) or f"`{note}`".replace("|", "\\|")
            note = f"not compared: {said}"
        lines.append(f"| {each[0].name} | `{each[0].kind}` | {' | '.join(cells)} | {note} |")
    return "\n".join(lines) + "\n"


def record(program: Path, name: str = "mimo-v2-5") -> None:
    """Of so many frames that no two codes are nearly as near: llama.cpp rounds what it chooses them by."""
    frames = GIVEN[name, "audio"][0]
    with tempfile.TemporaryDirectory() as folder:
        build(name, Path(folder, name))
        gguftools.convert(Path(folder, name), Path(folder, "x.gguf"), "f32", part="mmproj")
        with gguftools.open(Path(folder, "x.gguf")) as model:
            features = checkpoints.sound(name, int(model.metadata["clip.audio.num_mel_bins"]), frames)
        embeddings = encoded(program, Path(folder, "x.gguf"), "audio", features)
    np.savez_compressed(ENCODERS / name / "heard.npz", frames=[frames, frames], embeddings=embeddings)


def main(arguments: list[str]) -> None:
    source, libraries, *names = (each for each in arguments if not each.startswith("--"))
    found: dict[tuple[str, str], list[Compared]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(source), Path(libraries), Path(folder))
        if "--record" in arguments:
            record(program)
            return
        for name in names or checkpoints.encoders():
            for each in compared(program, name):
                found.setdefault((each.name, each.part), []).append(each)
    text = table(found.values())
    print(text, end="")
    if "--write" in arguments:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
