"""Write an in-toto statement of a file's digests and origin.

The origin is the source and the recipe. With --verify, checks FILE against a statement: exit code 1 if it differs.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit

EXAMPLES = (
    "gguftools attest model-Q4_K_M.gguf",
    "gguftools attest model-Q4_K_M.gguf --sign",
    "gguftools attest strange.gguf --source model-f16.gguf --recipe Q4_K_M",
    "gguftools attest model-Q4_K_M.gguf --verify",
)
GROUP = "Publish"


def attest(
    file: Annotated[Path, Argument(help="GGUF file, or any shard of a split set.")],
    statement: Annotated[Path | None, Argument(help="With --verify: the statement (default FILE.intoto.json).")] = None,
    verify: Annotated[bool, "Check FILE against STATEMENT: its digests, not the signature."] = False,
    manifest_file: Annotated[Path | None, "Manifest (default FILE.manifest.json, if it exists)."] = None,
    source: Annotated[str | None, "Original: stated here, and compared with the manifest's if there is one."] = None,
    recipe: Annotated[str | None, "Recipe to state where there is no manifest."] = None,
    imatrix: Path | None = None,
    output: Annotated[str | None, "file or folder (default FILE.intoto.json)."] = None,
    sign: Annotated[bool, "Also sign with Sigstore, by a CI job's identity: FILE.sigstore.json."] = False,
    overwrite: bool = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...lab.reproduction import Provenance, verify_attestation
    from ...lab.reproduction import attest as write
    from ..ui import bytes_progress, print_line, print_result, usage

    if verify and source is not None:
        usage("--verify cannot be combined with --source", "--verify checks a statement and writes none")
    if verify:
        with bytes_progress(f"verify {file.name}") as progress:
            verification = verify_attestation(file, statement, threads=threads, progress=progress)
        if not print_result(verification, json):
            for problem in verification.problems:
                print_line(problem)
            verdict = "is not" if verification.problems else "is"
            print_line(f"{verification.path} {verdict} what {verification.statement} says")
        raise Exit(0 if verification.ok else 1)
    if statement is not None:
        usage(
            f"{statement} is a statement to check, but --verify is missing",
            f"add --verify, or write one there with -o {statement}",
        )
    with bytes_progress(f"attest {file.name}") as progress:
        made = write(
            file,
            Provenance(manifest_file, source, recipe, imatrix),
            output=output,
            sign=sign,
            overwrite=overwrite,
            threads=threads,
            progress=progress,
        )
    if not print_result(made, json, [made.path, *([made.bundle] if made.bundle else [])]):
        what = f"from {made.manifest}" if made.manifest else "of its digests and what was named: it has no manifest"
        print_line(f"{made.path}: a statement {what}")
        if made.bundle:
            print_line(f"{made.bundle}: the same, signed")
