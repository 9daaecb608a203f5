"""Identify encoders by digests of their source text, so that bytes of another version are not taken for damage."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from quants.format import format_named

NOT_ENCODING = ("quants.errors", "quants.spelling", "quants.arguments", "quants.tensor", "quants.compilation")
NO_SOURCE = "0" * 64  # of a format without source text


@cache
def encoder_digest(form: str) -> str:
    """Return the SHA-256 of the source text that encodes a format: its file, codec, and their imports."""
    own = format_named(form)
    begin = [f"quants.formats.{form.lower()}", *([own.codec] if own.codec else [])]
    digest = hashlib.sha256()
    modules = sorted(_closure(begin))
    for name in modules:
        digest.update(f"{name}\n".encode())
        digest.update(_source(name) or b"")
        digest.update(b"\0")
    return digest.hexdigest() if modules else NO_SOURCE


def encoder_digests(forms: Iterable[str]) -> dict[str, str]:
    """Return the digest of each format's encoder."""
    return {form: encoder_digest(form) for form in sorted(set(forms))}


@cache
def conversion_digest() -> str:
    """Return the SHA-256 of the package `archs`, which converts a checkpoint's tensors and keys."""
    digest = hashlib.sha256()
    folder = Path(str(files("archs")))
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".json")):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def builder() -> dict[str, str]:
    """Return the versions of the programs that decide bytes."""
    from importlib.metadata import version

    own: str = sys.modules["gguftools"].__version__  # the package itself imports from here
    return {"gguftools": own, "numba": version("numba"), "numpy": version("numpy")}


def _closure(modules: Iterable[str]) -> set[str]:
    """Return modules, and all that they import from their own packages and from `quants`."""
    closure: set[str] = set()
    left = list(modules)
    packages = {"quants", *(name.partition(".")[0] for name in left)}
    while left:
        name = left.pop()
        if name in closure or name in NOT_ENCODING or (source := _source(name)) is None:
            continue
        closure.add(name)
        left += [each for each in _imported(name, source) if each.partition(".")[0] in packages]
    return closure


def _imported(module: str, source: bytes) -> Iterator[str]:
    """Yield the names that a module's source imports; those that are no modules have no source."""
    here = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = here[: len(here) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _source(module: str) -> bytes | None:
    """Return the source text of a module; None for a package, and without source."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py") or spec.submodule_search_locations:
        return None
    return Path(spec.origin).read_bytes()
