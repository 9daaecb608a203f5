"""Small checkpoints of tests/data/families: weights made from their names, as tests/data/families/README.md says."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gguftools
from tests.conftest import DATA

FAMILIES = DATA / "families"
ENCODERS = DATA / "towers"
SOUNDS = DATA / "sounds" / "spectrograms.npz"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
RECORDS = (
    "spec.json",
    "reference.json",
    "logits.npz",
    "scores.npz",
    "encodings.json",
    "embeddings.npz",
    "prepared.npz",
    "together.npz",
    "heard.npz",
    "cropped.npz",
)
DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I8": "i1", "F8_E8M0": "u1"}


def entries() -> list[str]:
    return sorted(path.parent.name for path in FAMILIES.glob("*/spec.json"))


def build(entry: str, folder: Path) -> None:
    """Write the checkpoint into `folder`, whose last part should be the entry's name: general.name comes from it."""
    spec = json.loads((FAMILIES / entry / "spec.json").read_text(encoding="utf-8"))
    folder.mkdir(parents=True)
    tokenizer = FAMILIES / "tokenizers" / spec["tokenizer"]
    for source, target in ((tokenizer, folder / spec.get("tokenizer_in", "")), (FAMILIES / entry, folder)):
        for file in sorted(source.rglob("*.*")):
            if file.name not in RECORDS:
                path = target / file.relative_to(source)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, path)
    write_tensors(folder / "model.safetensors", entry, spec["tensors"])
    for name in filter(lambda name: name.endswith(".safetensors"), spec):  # beside those of the model
        write_tensors(folder / name, f"{entry}/{name}", spec[name])


def encoders() -> list[str]:
    return sorted(path.parent.name for path in ENCODERS.glob("*/spec.json"))


def build_encoder(entry: str, folder: Path, renamed: Mapping[str, str] = {}) -> None:
    """Write a checkpoint of tests/data/towers into `folder`; there is a vocabulary in few of them.

    renamed: beginnings of names → what they begin with instead, with the same values.
    """
    spec = json.loads((ENCODERS / entry / "spec.json").read_text(encoding="utf-8"))
    folder.mkdir(parents=True)
    for file in sorted((ENCODERS / entry).iterdir()):
        if file.name not in RECORDS:
            shutil.copyfile(file, folder / file.name)
    write_tensors(folder / "model.safetensors", entry, spec["tensors"], renamed)
    for name, inside in spec.get("folders", {}).items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(inside["config"]), encoding="utf-8")
        write_tensors(folder / name / "model.safetensors", f"{entry}/{name}", inside["tensors"])


def recorded(what: str) -> list[str]:
    """Encoders that have embeddings of an image ("size") or a sound ("frames")."""
    return [name for name in encoders() if what in truth_of(name, what)]


def truth_of(name: str, what: str) -> Any:
    """What is recorded of an encoder for images ("size") or sounds ("frames")."""
    found: Any = {}
    for file in ("embeddings.npz", "heard.npz"):
        if (ENCODERS / name / file).is_file() and what not in found:
            found = np.load(ENCODERS / name / file)
    return found


def image(entry: str, height: int, width: int) -> NDArray[np.float32]:
    """Pixels for an encoder, (3, height, width)."""
    return values(entry, "picture", [3, height, width], 0.0, 1.0).astype(np.float32)


def scene(height: int, width: int) -> NDArray[np.uint8]:
    """An image as it comes, (height, width, 3): waves and an edge."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 5), np.cos(y / 7), np.sin((x + 2 * y) / 11)], axis=-1)
    edge = np.where((x > width // 3) & (y > height // 2), 40, 0)[:, :, None]
    return np.round(127 + 80 * waves + edge).astype(np.uint8)


def sound(entry: str, mels: int, frames: int) -> NDArray[np.float32]:
    """A spectrogram for an encoder, (mels, frames)."""
    return values(entry, "sound", [mels, frames], 0.0, 0.5).astype(np.float32)


def waveform() -> NDArray[np.float32]:
    """A second and some of a tone that rises and fades, then noise: 17,333 samples."""
    time = np.arange(17_333) / 16_000
    tone = np.sin(2 * np.pi * (100 + 900 * time) * time) * np.exp(-2 * time) / 2
    return (tone + values("waveform", "noise", [17_333], 0.0, 1e-3)).astype(np.float32)


def shown(spectrogram: NDArray[np.float32]) -> NDArray[np.float32]:
    """Some frames of (bands, frames): from the beginning, and about the end of `waveform`."""
    return np.concatenate([spectrogram[:, :20], spectrogram[:, 40:50], spectrogram[:, 95:115]], axis=1)


def lettered(special: Sequence[str]) -> dict[str, Any]:
    """Keys of a vocabulary of 64 tokens: letters, and from the 60th on at most four special ones."""
    letters = [" ", "\n", *"abcdefghijklmnopqrstuvwxyz:"]
    tokens = ["<unk>", "<s>", "</s>", *letters]
    tokens = [*tokens, *(f"<{i}>" for i in range(len(tokens), 60)), *special, *(f"<{i}>" for i in range(60, 64))][:64]
    kinds = {0: 2, 1: 3, 2: 3} | dict.fromkeys(range(len(letters) + 3, 64), 3)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [each.replace(" ", "▁") for each in tokens],
        "tokenizer.ggml.scores": [0.0] * 64,
        "tokenizer.ggml.token_type": [kinds.get(i, 1) for i in range(64)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
    }


def file_digest(path: Path) -> str:
    """The sha256 of an encoder's file, but for what torch rounds otherwise than exactly, to the last bit."""
    content = bytearray(path.read_bytes())
    with gguftools.open(path) as model:
        assert model.file is not None
        for name, tensor in model.tensors.items():
            kinds = (model.metadata.get(f"clip.{part}projector_type") for part in ("", "audio."))
            waves = name == "a.position_embd.weight" and {"qwen2.5o", "qwen3a"} & {*kinds}
            roots = ".conv_norm." in name and {"granite_speech", "lfm2a"} & {*kinds}
            powers = name.startswith("a.gen.wav.dac.") and name.endswith((".alpha", ".beta"))
            if waves or roots or powers or name.endswith(".per_dim_scale.weight"):
                start = model.file.parts[0].offsets[name]
                content[start : start + tensor.nbytes] = bytes(tensor.nbytes)
    return hashlib.sha256(content).hexdigest()


def write_tensors(file: Path, entry: str, rows: Iterable[Sequence[Any]], renamed: Mapping[str, str] = {}) -> None:
    """A safetensors file of made weights. rows: name, stored type, shape, mean, standard deviation of each. renamed:
    beginnings of names → what they begin with in the file.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    place = 0
    for name, dtype, shape, mean, std in rows:
        parts.append(stored(values(entry, name, shape, mean, std), dtype))
        begins = next((old for old in renamed if name.startswith(old)), "")
        written = renamed.get(begins, "") + name.removeprefix(begins)
        header[written] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + len(parts[-1])]}
        place += len(parts[-1])
    head = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


def values(entry: str, name: str, shape: list[int], mean: float, std: float) -> NDArray[np.float64]:
    """Numbers near to normal ones, the same everywhere: sums of the four 16-bit parts of PCG64's words."""
    seed = int.from_bytes(hashlib.sha256(f"{entry}:{name}".encode()).digest()[:8], "little")
    words = np.random.PCG64(seed).random_raw(math.prod(shape)).astype("<u8")
    sums = words.view("<u2").reshape(-1, 4).astype(np.int64).sum(axis=1)
    numbers: NDArray[np.float64] = mean + std * (sums - 2 * 65536 + 2) / 65536 * math.sqrt(3)
    return numbers.reshape(shape)


def stored(array: NDArray[np.float64], dtype: str) -> bytes:
    if dtype == "BF16":
        bits = array.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return array.astype(DTYPES[dtype]).tobytes()
