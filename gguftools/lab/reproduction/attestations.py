"""Write and verify in-toto statements about a file and what it was made from.

    FILE.intoto.json      a Statement v1: subjects are the output's files, the predicate says what decided their bytes
    FILE.sigstore.json    the same in a bundle signed by sigstore, where that was asked for

`docs/provenance.md` has the predicate's schema.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from archs.small_files import parse_json
from quants.arguments import PathLike
from quants.errors import FileError, OptionError
from quants.spelling import quote

from ...io.atomic import InputFiles, check_target, output_path
from ...io.gguf.reader import GgufFile
from ...io.stores.path import first_line, located
from ...models.model import open as open_model
from ...provenance.hashing import ByteRange, range_digests
from ...provenance.manifest import (
    DIGEST,
    FileRecord,
    Manifest,
    MatrixRecord,
    SourceRecord,
    TensorRecord,
    manifest_path,
    read_manifest,
    read_object,
)
from ...provenance.parameters import Parameters
from ...provenance.recording import (
    exists,
    matrix_record,
    opened_file,
    source_record,
    stored_records,
    tensor_range,
    written_whole,
)
from ...quantization.recipe_texts import recipe_or_file
from ...writing.report import Report
from ...writing.row_blocks import Progress
from .report import source_differences

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:gguftools:provenance:v1"
BUILDER = "urn:gguftools:builder:v1"
INTOTO, SIGSTORE = ".intoto.json", ".sigstore.json"
SHOWN = 20  # lines on altered tensors that are printed


@dataclass(frozen=True)
class Attestation(Report):
    """A statement that was written to `path`, and its signed bundle. manifest: the one it was made from, if any."""

    path: Path
    subjects: dict[str, str]
    manifest: str | None = None
    bundle: str | None = None


@dataclass(frozen=True)
class Verification(Report):
    """A file compared with a statement. problems: a line for each mismatch; tensors: names of altered ones."""

    also: ClassVar[tuple[str, ...]] = ("ok",)

    path: Path
    statement: str
    subjects: int
    problems: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class Provenance:
    """How a file was made, for a statement.

    manifest: what says it; default FILE.manifest.json, if there is one; it must be of the file as it is. source: what
    it was made of, compared with what a manifest says, else stated. recipe, imatrix: the recipe's name or text, and the
    importance matrix, to state where there is no manifest.
    """

    manifest: PathLike | None = None
    source: PathLike | None = None
    recipe: str | None = None
    imatrix: PathLike | None = None


UNKNOWN = Provenance()


def attest(
    file: PathLike,
    provenance: Provenance = UNKNOWN,
    *,
    output: PathLike | None = None,
    sign: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Attestation:
    """Write an in-toto statement about a GGUF file, or about a split set (name any shard).

    provenance: how the file was made. output: default FILE.intoto.json. sign: also write FILE.sigstore.json, signed by
    sigstore with the credential of the surroundings, as continuous integration has one (extra `sign`). overwrite:
    replace files that exist. threads: default all processors. progress(bytes, of how many, name).
    Raises OptionError, FileError.
    """
    manifest, source = provenance.manifest, provenance.source
    recipe, imatrix = provenance.recipe, provenance.imatrix
    opened = opened_file(file)
    first = opened.parts[0].path
    given = manifest_path(first) if manifest is None else located(manifest)
    known = read_manifest(given) if manifest is not None or exists(given) else None
    if known is not None and (recipe is not None or imatrix is not None):
        raise OptionError(f"{given} describes how {first.name} was made", "leave out `recipe` and `imatrix`")
    stated, text_file = (None, None) if recipe is None else recipe_or_file(recipe)
    target = output_path(first.with_name(first.name + INTOTO) if output is None else output, first.name + INTOTO)
    bundle = target.with_name(target.name.removesuffix(INTOTO) + SIGSTORE) if sign else None
    reads = InputFiles(states=opened.states).also([source, imatrix, None if known is None else given, text_file])
    for path in (target, bundle):
        if path is not None:
            check_target(path, reads, overwrite)
    signed = signer() if sign else None
    files, tensors = stored_records(opened, threads, progress)
    made_of = None if source is None else source_record(source, open_model(source), threads, progress)
    if known is None:
        parameters = {} if stated is None else Parameters(recipe=stated).as_dict()
        statement = _statement(files, tensors, made_of, matrix_record(imatrix), (), parameters)
    else:
        _check_manifest(given, known, files, tensors)
        if made_of is not None and (wrong := source_differences(made_of, known.source)):
            raise FileError(wrong[0], f"{given.name} names the source")
        statement = _statement_of(known, files, tensors)
    text = json.dumps(statement, indent=1) + "\n"
    envelope = None if signed is None else signed(text.encode())
    written_whole(target, text, overwrite, reads)
    if bundle is not None and envelope is not None:
        written_whole(bundle, envelope, overwrite, reads)
    subjects = {each.name: str(each.sha256) for each in files}
    return Attestation(target, subjects, None if known is None else str(given), None if bundle is None else str(bundle))


def _check_manifest(
    path: Path, manifest: Manifest, files: Sequence[FileRecord], tensors: Sequence[TensorRecord]
) -> None:
    """Raise FileError if a file does not match its manifest."""
    if [(each.bytes, each.sha256) for each in files] == [(each.bytes, each.sha256) for each in manifest.files]:
        return
    listed = {each.name: each.sha256 for each in manifest.tensors}
    altered = [each.name for each in tensors if listed.get(each.name) != each.sha256]
    what = f"tensor {quote(altered[0])} is another" if altered else "its keys or its layout are others"
    hint = "`gguftools reproduce` shows what was altered"
    raise FileError(f"{files[0].name} does not match {path}: {what}", hint)


def _statement_of(manifest: Manifest, files: Sequence[FileRecord], tensors: Sequence[TensorRecord]) -> dict[str, Any]:
    statement = _statement(files, tensors, manifest.source, manifest.imatrix, manifest.texts, dict(manifest.parameters))
    statement["predicate"] |= {
        "builder": {"id": BUILDER, "version": dict(manifest.builder)},
        "encoders": dict(manifest.encoders),
        "conversion": manifest.conversion,
    }
    return statement


def _statement(
    files: Sequence[FileRecord],
    tensors: Sequence[TensorRecord],
    source: SourceRecord | None,
    matrix: MatrixRecord | None,
    texts: Sequence[FileRecord],
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    materials = [] if source is None else [_source_material(source, each) for each in source.files]
    if matrix is not None and matrix.file is not None:
        materials.append(_material(matrix.file, "imatrix"))
    materials += [_material(text, "text") for text in texts]
    listed = [
        {
            "name": each.name,
            "file": files[each.file].name,
            "offset": each.offset,
            "bytes": each.bytes,
            "format": each.format,
            "shape": list(each.shape),
            "digest": {"sha256": each.sha256},
        }
        for each in tensors
    ]
    return {
        "_type": STATEMENT,
        "subject": [{"name": each.name, "digest": {"sha256": each.sha256}} for each in files],
        "predicateType": PREDICATE,
        "predicate": {"parameters": dict(parameters), "materials": materials, "tensors": listed},
    }


def _material(file: FileRecord, role: str) -> dict[str, Any]:
    digest = {"digest": {"sha256": file.sha256}} if file.sha256 else {}
    return {"name": file.name, **digest, "annotations": {"role": role, "bytes": file.bytes}}


def _source_material(source: SourceRecord, file: FileRecord) -> dict[str, Any]:
    material = _material(file, "source")
    if source.commit is None:
        return material
    digest = {**material.get("digest", {}), "gitCommit": source.commit}
    return {**material, "uri": f"{source.name}@{source.commit}/{file.name}", "digest": digest}


def verify_attestation(
    file: PathLike, statement: PathLike | None = None, *, threads: int | None = None, progress: Progress | None = None
) -> Verification:
    """Compare a GGUF file, or a split set, with a statement: as a whole, and tensor by tensor.

    statement: a statement, or sigstore's bundle of one, whose signature is not checked; default FILE.intoto.json.
    threads: default all processors. progress(bytes, of how many, name). Raises FileError for an invalid statement, or
    one about another file.
    """
    opened = opened_file(file)
    first = opened.parts[0].path
    path = first.with_name(first.name + INTOTO) if statement is None else located(statement)
    subjects, listed = _read_statement(path)
    if len(subjects) != len(opened.parts):
        raise FileError(f"{path} is of {len(subjects)} files, {first.name} is {len(opened.parts)}")
    ranges = [ByteRange(part.path, 0, part.file_size, part.path.name) for part in opened.parts]
    digests = range_digests(ranges, threads, progress)
    wrong = [
        part.path.name
        for part, digest, (_, wanted) in zip(opened.parts, digests, subjects, strict=True)
        if digest != wanted
    ]
    problems, altered = _altered(opened, listed, threads, progress)
    lines = [f"{name} is not the file that {path.name} is of: its SHA-256 is another" for name in wrong]
    if wrong and listed and not problems:
        problems = [f"all {len(listed)} tensors are as they were: keys, layout or padding were altered"]
    if problems and not wrong:
        lines = [f"{path.name} contradicts itself: its files' digests fit, its tensors' do not"]
    return Verification(opened.path, str(path), len(subjects), (*lines, *problems), tuple(altered))


def _altered(
    file: GgufFile, listed: Mapping[str, Mapping[str, Any]], threads: int | None, progress: Progress | None
) -> tuple[list[str], list[str]]:
    """Return mismatches with a statement's tensors: lines for users, and names."""
    if not listed:
        return [], []
    stored = [(number, name) for number, part in enumerate(file.parts) for name in part.tensors]
    known = [each for each in stored if each[1] in listed]
    digests = range_digests([tensor_range(file, *each) for each in known], threads, progress)
    stated = {name: listed[name]["digest"]["sha256"] for _, name in known}
    altered = [name for (_, name), digest in zip(known, digests, strict=True) if digest != stated[name]]
    placed = [(name, wrong) for number, name in known if (wrong := _misplaced(file.parts[number], name, listed[name]))]
    absent = [name for name in listed if name not in file.tensors]
    lines = [f"tensor {quote(name)} was altered" for name in altered]
    lines += [f"tensor {quote(name)}: {wrong}" for name, wrong in placed if name not in altered]
    lines += [f"tensor {quote(name)} is not in the file" for name in absent]
    lines += [f"tensor {quote(name)} is not in the statement" for _, name in stored if name not in listed]
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    names = dict.fromkeys((*altered, *(name for name, _ in placed), *absent))
    return [*lines[:SHOWN], *more], list(names)


def _misplaced(part: GgufFile, name: str, stated: Mapping[str, Any]) -> str | None:
    """Return how a tensor's format, shape or size differs from the statement's, where it has them."""
    tensor = part.tensors[name]
    actual = {"format": tensor.format.name, "shape": list(tensor.shape), "bytes": tensor.nbytes}
    wrong = next((key for key in actual if key in stated and stated[key] != actual[key]), None)
    return None if wrong is None else f"its {wrong} is {actual[wrong]!r}, the statement has {quote(stated[wrong])}"


def _read_statement(path: Path) -> tuple[list[tuple[str, str]], dict[str, Mapping[str, Any]]]:
    """Return a statement's subjects (name, SHA-256), and its tensors by name, if it has our predicate."""
    statement = read_object(path, "statement")
    if "dsseEnvelope" in statement or "payload" in statement:
        statement = _payload(path, statement.get("dsseEnvelope", statement))
    if statement.get("_type") != STATEMENT:
        raise FileError(f"{path} is no statement: its _type is {quote(statement.get('_type'))}, not {STATEMENT!r}")
    subjects = [_named_digest(path, each, "subject") for each in _list(path, statement.get("subject"), "subject")]
    if not subjects:
        raise FileError(f"{path} is a statement of no file")
    predicate = statement.get("predicate")
    if statement.get("predicateType") != PREDICATE or not isinstance(predicate, dict):
        return subjects, {}
    tensors = _list(path, predicate.get("tensors", []), "tensors")
    listed = {_named_digest(path, each, "tensor")[0]: each for each in tensors}
    if len(listed) < len(tensors):
        raise FileError(f"{path} lists a tensor twice")
    return subjects, listed


def _payload(path: Path, envelope: Any) -> dict[str, Any]:
    try:
        payload = parse_json(base64.b64decode(envelope["payload"], validate=True), unique=True)
    except (TypeError, KeyError, ValueError, binascii.Error) as error:
        raise FileError(f"{path} is no statement: its envelope has no payload that can be read") from error
    if not isinstance(payload, dict):
        raise FileError(f"{path} is no statement: its envelope holds none")
    return payload


def _list(path: Path, value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise FileError(f"{path} is no statement: {what} is no list")
    return value


def _named_digest(path: Path, entry: Any, what: str) -> tuple[str, str]:
    digest = entry.get("digest") if isinstance(entry, dict) else None
    value = digest.get("sha256") if isinstance(digest, dict) else None
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise FileError(f"{path}: a {what} has no name and SHA-256 of 64 hex digits", "it is not as it was written")
    return name, value


def signer() -> Callable[[bytes], str]:
    """Return a function that signs a statement and returns sigstore's bundle. Raises OptionError without the library or
    a credential.
    """
    try:
        from sigstore import dsse, oidc
        from sigstore.models import ClientTrustConfig
        from sigstore.sign import SigningContext
    except ImportError:
        raise OptionError("signing needs sigstore", "pip install 'gguftools[sign]'") from None
    try:
        credential = oidc.detect_credential()
    except Exception as error:  # several types, depending on the environment
        raise OptionError(f"no credential can be had to sign with: {type(error).__name__}") from error
    if credential is None:
        hint = "sign where there is one: in GitHub Actions with `id-token: write`, in GitLab CI, on a cloud's machine"
        raise OptionError("there is no credential to sign with in these surroundings", hint)

    def signed(statement: bytes) -> str:
        try:
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(oidc.IdentityToken(credential)) as one:
                bundle: str = one.sign_dsse(dsse.Statement(statement)).to_json()
        except Exception as error:  # errors of the library or the network
            reason = first_line(error).replace(str(credential), "…")[:200]
            raise FileError(f"sigstore did not sign: {type(error).__name__}: {reason}", "try again later") from error
        return bundle

    return signed
