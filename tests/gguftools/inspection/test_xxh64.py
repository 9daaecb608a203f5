"""XXH64 against values of the reference library, whatever the pieces it is fed with."""

import numpy as np
import pytest
from xxhash import xxh64 as XXH64  # noqa: N812

DATA = bytes(i * 7 % 256 for i in range(300))
# seed: length of the data's beginning: hash
REFERENCE = {
    0: {
        0: "ef46db3751d8e999",
        1: "e934a84adb052768",
        3: "9ff70a635a6209ab",
        4: "ae5acdc00a55ac41",
        8: "87116b3365b924eb",
        14: "8b3c6f96512c86a1",
        31: "0f187c62b1e722b7",
        32: "91b0cb0931a8c629",
        33: "931b043cf8d65b94",
        63: "219110bf13e2fa26",
        64: "bf3052e3445775d0",
        101: "42312f4d55d9bd17",
        300: "240b95edf72f18e0",
    },
    2654435761: {
        0: "ac75fda2929b17ef",
        1: "5014607643a9b4c3",
        3: "ecf3373c29e497d4",
        4: "ba4a2450c7e2c0a9",
        8: "22e331c009171f74",
        14: "10370eadb9f796db",
        31: "a2ba2580312f0f94",
        32: "ba4945101354e701",
        33: "1f245ed9dde2a6c8",
        63: "7010506b304f24a3",
        64: "7a368c1f823dfc0e",
        101: "48395cd114743493",
        300: "27b467cbe10e2914",
    },
}


@pytest.mark.parametrize("seed", REFERENCE)
def test_values(seed):
    for length, expected in REFERENCE[seed].items():
        assert XXH64(DATA[:length], seed).hexdigest() == expected
    assert XXH64(b"abc").hexdigest() == "44bc2cf5ad770999"


@pytest.mark.parametrize("piece", [1, 5, 31, 32, 33, 100])
def test_pieces_do_not_matter(piece):
    for length, expected in REFERENCE[0].items():
        hasher = XXH64()
        for start in range(0, length, piece):
            hasher.update(memoryview(DATA)[start : min(start + piece, length)])
            hasher.hexdigest()
        assert hasher.hexdigest() == expected


def test_unaligned_and_writable_buffers():
    buffer = np.zeros(309, np.uint8)
    for shift in range(9):
        buffer[shift : shift + 300] = np.frombuffer(DATA, np.uint8)
        assert XXH64(buffer[shift : shift + 300].data).hexdigest() == REFERENCE[0][300]
