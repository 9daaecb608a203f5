"""Hash tensors of GGUF files, or check them against a manifest.

Hashes do not depend on metadata or padding.
"""

from pathlib import Path
from typing import Annotated

from typer import Exit

EXAMPLES = (
    "gguftools hash model.gguf",
    "gguftools hash model.gguf --sha256 -o model.manifest",
    "gguftools hash model.gguf --check model.manifest",
)
GROUP = "Publish"


def hash(
    files: list[Path],
    xxh64: Annotated[bool, "XXH64: fast, detects damage (default)."] = False,
    sha1: Annotated[bool, "SHA-1."] = False,
    sha256: Annotated[bool, "SHA-256: detects tampering."] = False,
    uuid: Annotated[bool, "UUID (version 5) of all tensor data."] = False,
    all: Annotated[bool, "Include all: every kind of hash."] = False,
    no_tensors: Annotated[bool, "Print one hash per file, none per tensor."] = False,
    check: Annotated[Path | None, "Check the files against this manifest."] = None,
    output: Annotated[str | None, "manifest file (- prints it)."] = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...inspection.hashing import check_file, write_manifest
    from ...inspection.hashing import hash as hashed
    from ..ui import bytes_progress, print_json, print_line

    given = {"xxh64": xxh64, "sha1": sha1, "sha256": sha256, "uuid": uuid}
    wanted = [name for name, chosen in given.items() if chosen or all] or ["xxh64"]
    with bytes_progress("hash") as progress:
        if check is not None:
            reports = [check_file(path, check, progress) for path in files]
        else:
            hashes = (hashed(path, wanted, tensors=not no_tensors, progress=progress) for path in files)
            computed = (digest for report in hashes for digest in report.digests)
            digests = list(computed) if output is None else write_manifest(output, computed, overwrite, files)
    if check is not None:
        if json:
            print_json(reports)
        for report in () if json else reports:
            for mismatch in report.mismatches:
                print_line(str(mismatch))
            verdict = f"{len(report.mismatches)} wrong" if report.mismatches else "as it should be"
            print_line(f"{report.file}: {verdict}; {report.checked} hashes checked")
        raise Exit(1 if any(report.mismatches for report in reports) else 0)
    if json:
        print_json(digests)
    elif output is None:
        for digest in digests:
            print_line(digest.line())
