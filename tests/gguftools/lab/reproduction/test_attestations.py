"""Statements say what manifests say, and tell which tensor of a file was altered."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gguftools import Provenance, attest, convert, quantize, verify_attestation
from gguftools.io.gguf.reader import open_gguf
from gguftools.lab.reproduction.attestations import PREDICATE, STATEMENT
from gguftools.provenance.manifest import manifest_path
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, OptionError

from ....conftest import ROOT
from ...command_line import typed

MODEL = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("made")
    convert(MODEL, made / "f16.gguf", "F16")
    quantize(made / "f16.gguf", "Q4_0", made / "q.gguf", write=WriteOptions(manifest=True))
    attest(made / "q.gguf")
    return made


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """The file with its manifest and statement, to be altered."""
    for name in ("q.gguf", "q.gguf.manifest.json", "q.gguf.intoto.json"):
        shutil.copy(folder / name, tmp_path / name)
    return tmp_path / "q.gguf"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def statement_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_name(path.name + ".intoto.json").read_text())
    return found


def test_a_statement_says_what_the_manifest_says(folder) -> None:
    found, manifest = statement_of(folder / "q.gguf"), json.loads(manifest_path(folder / "q.gguf").read_text())
    digest = hashlib.sha256((folder / "q.gguf").read_bytes()).hexdigest()
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["subject"] == [{"name": "q.gguf", "digest": {"sha256": digest}}]
    predicate = found["predicate"]
    assert (found["predicateType"], predicate["parameters"]) == (PREDICATE, manifest["parameters"])
    assert predicate["builder"]["version"] == manifest["builder"]
    [material] = predicate["materials"]
    assert (material["name"], material["annotations"]["role"]) == ("f16.gguf", "source")
    assert material["digest"]["sha256"] == hashlib.sha256((folder / "f16.gguf").read_bytes()).hexdigest()
    assert [(each["name"], each["digest"]["sha256"]) for each in predicate["tensors"]] == [
        (each["name"], each["sha256"]) for each in manifest["tensors"]
    ]
    assert verify_attestation(folder / "q.gguf").ok
    assert str(folder) not in json.dumps(found)


def test_altered_tensors_are_named(copy) -> None:
    flip(copy, open_gguf(copy).offsets["blk.1.attn_q.weight"] + 9)
    found = verify_attestation(copy)
    assert (found.ok, found.tensors) == (False, ("blk.1.attn_q.weight",))
    assert "tensor 'blk.1.attn_q.weight' was altered" in found.problems
    with pytest.raises(FileError, match=r"tensor 'blk.1.attn_q.weight' is another"):
        attest(copy, overwrite=True)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("digest", {"sha256": "0" * 64}, "tensor 'blk.1.attn_q.weight' was altered"),
        ("format", "F32", "its format is 'Q4_0', the statement has 'F32'"),
        ("shape", [1, 2], "its shape is [256, 256], the statement has [1, 2]"),
        ("name", "other", "tensor 'other' is not in the file"),
    ],
)
def test_a_statement_whose_tensors_are_others_contradicts_itself(copy, key, value, said) -> None:
    """Though the files' digests fit."""
    statement = statement_of(copy)
    [tensor] = [each for each in statement["predicate"]["tensors"] if each["name"] == "blk.1.attn_q.weight"]
    tensor[key] = value
    copy.with_name("q.gguf.intoto.json").write_text(json.dumps(statement))
    found = verify_attestation(copy)
    assert not found.ok
    assert found.problems[0] == "q.gguf.intoto.json contradicts itself: its files' digests fit, its tensors' do not"
    assert any(said in line for line in found.problems), found.problems
    assert found.tensors == (tensor["name"],)


def test_altered_keys_are_told_from_tensors(copy) -> None:
    content = copy.read_bytes()
    copy.write_bytes(content.replace(b"general.name", b"general.nbme", 1))
    found = verify_attestation(copy)
    assert (found.ok, found.tensors) == (False, ())
    assert "keys, layout or padding were altered" in found.problems[-1]


def test_without_a_manifest_what_is_named_is_stated(folder, tmp_path) -> None:
    path = Path(shutil.copy(folder / "q.gguf", tmp_path / "x.gguf"))
    attest(path, Provenance(source=folder / "f16.gguf", recipe="Q4_0"))
    found = statement_of(path)
    assert found["predicate"]["parameters"] == {"operation": "quantize", "recipe": {"name": "Q4_0"}}
    assert [each["name"] for each in found["predicate"]["materials"]] == ["f16.gguf"]
    assert "builder" not in found["predicate"]  # who made it, nobody knows
    assert verify_attestation(path).ok


def test_what_a_manifest_says_is_not_overruled(folder, copy, tmp_path) -> None:
    with pytest.raises(OptionError, match="describes how"):
        attest(copy, Provenance(recipe="Q8_0"), overwrite=True)
    with pytest.raises(FileError, match="is not the source"):
        attest(copy, Provenance(source=MODEL), overwrite=True)
    attest(copy, Provenance(source=folder / "f16.gguf"), overwrite=True)
    with pytest.raises(FileError, match="already exists"):
        attest(copy)


def test_sets_of_shards(folder, tmp_path) -> None:
    report = quantize(
        folder / "f16.gguf",
        "Q8_0",
        tmp_path / "s.gguf",
        options=QuantizeOptions(max_tensors=15),
        write=WriteOptions(manifest=True),
    )
    last = report.outputs[0].files[-1]
    attest(last)
    assert verify_attestation(last).ok
    flip(last, last.stat().st_size - 40)
    found = verify_attestation(report.outputs[0].file)
    assert len(found.tensors) == 1
    assert last.name in found.problems[0]


LIES: dict[str, Any] = {
    "_type": lambda s: s.update(_type="x"),
    "subject is no list": lambda s: s.update(subject=7),
    "of no file": lambda s: s.update(subject=[]),
    "64 hex digits": lambda s: s["subject"][0]["digest"].update(sha256="../x"),
    "is of 2 files": lambda s: s["subject"].append(s["subject"][0]),
    "lists a tensor twice": lambda s: s["predicate"]["tensors"].append(s["predicate"]["tensors"][0]),
    "tensors is no list": lambda s: s["predicate"].update(tensors={"a": 1}),
    "a tensor has no name": lambda s: s["predicate"]["tensors"].append([1]),
    "has no payload": lambda s: s.update(payload="§"),
}


@pytest.mark.parametrize("said", LIES)
def test_statements_that_lie(copy, said) -> None:
    found = statement_of(copy)
    LIES[said](found)
    copy.with_name("lie.json").write_text(json.dumps(found))
    with pytest.raises(FileError) as caught:
        verify_attestation(copy, copy.with_name("lie.json"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def sigstore_that(signs: bool, credential: str | None, monkeypatch) -> list[bytes]:
    """A stand-in for the library; returns what it was given to sign."""
    seen: list[bytes] = []

    @contextmanager
    def signing(token: str):
        def sign_dsse(statement: bytes) -> Any:
            if not signs:
                raise RuntimeError(f"refused {token}")
            seen.append(statement)
            payload = base64.b64encode(statement).decode()
            return SimpleNamespace(to_json=lambda: json.dumps({"dsseEnvelope": {"payload": payload}}))

        yield SimpleNamespace(sign_dsse=sign_dsse)

    modules = {name: ModuleType(name) for name in ("sigstore", "sigstore.models", "sigstore.sign")}
    vars(modules["sigstore"]).update(
        dsse=SimpleNamespace(Statement=bytes),
        oidc=SimpleNamespace(detect_credential=lambda: credential, IdentityToken=str),
    )
    vars(modules["sigstore.models"])["ClientTrustConfig"] = SimpleNamespace(production=lambda: "trust")
    context = SimpleNamespace(signer=signing)
    vars(modules["sigstore.sign"])["SigningContext"] = SimpleNamespace(from_trust_config=lambda _: context)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return seen


def test_what_is_signed_is_the_statement(copy, monkeypatch) -> None:
    seen = sigstore_that(True, "secret", monkeypatch)
    made = attest(copy, sign=True, overwrite=True)
    assert seen == [copy.with_name("q.gguf.intoto.json").read_bytes()]
    assert made.bundle == str(copy.with_name("q.gguf.sigstore.json"))
    assert verify_attestation(copy, made.bundle).ok
    assert json.loads(seen[0])["_type"] == STATEMENT


def test_signing_that_fails_leaves_nothing_and_tells_no_secret(copy, monkeypatch) -> None:
    copy.with_name("q.gguf.intoto.json").unlink()
    before = sorted(path.name for path in copy.parent.iterdir())
    sigstore_that(False, "secret", monkeypatch)
    with pytest.raises(FileError, match="did not sign") as caught:
        attest(copy, sign=True)
    assert "secret" not in str(caught.value)
    sigstore_that(True, None, monkeypatch)
    with pytest.raises(OptionError, match="no credential"):
        attest(copy, sign=True)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(OptionError, match="signing needs sigstore"):
        attest(copy, sign=True)
    assert sorted(path.name for path in copy.parent.iterdir()) == before


def test_the_command(copy) -> None:
    done = typed("attest", str(copy), "--overwrite", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["subjects"].keys() == {"q.gguf"}
    assert typed("attest", str(copy), "--verify").returncode == 0
    flip(copy, copy.stat().st_size - 40)
    done = typed("attest", str(copy), "--verify", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "wrong")
    assert typed("attest", str(copy), "x.json").returncode == 2
    assert typed("attest", str(copy), "--verify", "--source", "x").returncode == 2
