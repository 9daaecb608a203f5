"""Number types of checkpoints: every code of the small ones against definitions, and against ml_dtypes-like facts."""

import numpy as np
import pytest

from gguftools.io.checkpoint.dtypes import checkpoint_formats
from quants import FormatError, Tensor, format_named

CODES = np.arange(256, dtype=np.uint8)[None]


def tensor(name, raw):
    form = checkpoint_formats()[name]
    return Tensor("t", (len(raw), raw.shape[1] * form.block_size // form.block_bytes), form, lambda a, b: raw[a:b])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("F8_E4M3", {0x00: 0.0, 0x01: 2**-9, 0x38: 1.0, 0xB8: -1.0, 0x7E: 448.0, 0x7F: None, 0xFF: None}),
        ("F8_E5M2", {0x01: 2**-16, 0x3C: 1.0, 0x7B: 57344.0, 0x7C: np.inf, 0xFC: -np.inf, 0x7D: None, 0xFF: None}),
        ("F8_E4M3FNUZ", {0x01: 2**-10, 0x40: 1.0, 0x7F: 240.0, 0xFF: -240.0, 0x80: None}),
        ("F8_E5M2FNUZ", {0x01: 2**-17, 0x40: 1.0, 0x7F: 57344.0, 0x80: None}),
        ("F8_E8M0", {0: 2.0**-127, 127: 1.0, 254: 2.0**127, 255: None}),
    ],
)
def test_small_floats(name, known):
    values = tensor(name, CODES).float32(0, 1)[0]
    for code, value in known.items():
        assert np.isnan(values[code]) if value is None else values[code] == value, hex(code)
    finite = values[:127][np.isfinite(values[:127])]
    assert (np.diff(finite) > 0).all()
    assert np.isnan(values).sum() == sum(value is None for value in known.values()) + (4 if name == "F8_E5M2" else 0)


@pytest.mark.verify
def test_against_pytorch():
    import torch

    names = {
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
        "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
        "F8_E8M0": torch.float8_e8m0fnu,
    }
    for name, dtype in names.items():
        theirs = torch.from_numpy(CODES.copy()).view(dtype).float().numpy()
        np.testing.assert_array_equal(tensor(name, CODES).float32(), theirs)


def test_four_bits():
    raw = np.array([[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    low = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert tensor("F4", raw).float32().tolist() == [low, [-value for value in low]]


@pytest.mark.parametrize("name", ["U8", "U16", "U32", "U64", "BOOL"])
def test_integers(name):
    dtype = {"U16": "<u2", "U32": "<u4", "U64": "<u8"}.get(name, "u1")
    values = np.array([[0, 1], [1, 1]], dtype)
    made = tensor(name, values.view(np.uint8))
    assert made.elements().tolist() == values.tolist()
    assert made.float32().tolist() == values.tolist()
    assert not made.format.is_quantized


def test_what_ggml_knows_is_ggml_s():
    assert checkpoint_formats()["BF16"] is format_named("BF16")
    assert all(form.ggml_type == -1 for name, form in checkpoint_formats().items() if name[:2] in ("F8", "U8", "BO"))


def test_what_cannot_be_done():
    with pytest.raises(FormatError, match="C64 tensors can be copied, but not decoded"):
        tensor("C64", np.zeros((1, 8), np.uint8)).float32()
    with pytest.raises(FormatError, match="nothing is encoded to it"):
        checkpoint_formats()["U8"].encode(np.zeros((1, 1), np.float32))
