"""Put names of local files into settings of a release: they are kept apart from what is published."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archs.small_files import read_json_object
from quants.errors import FileError

from .journal import WORK

LOCAL = "local.json"  # in the folder of what is not published: setting → its value in release.toml → a local path


def with_local_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings with names of files as this machine has them. folder: that release.toml is in.

    They are those that the release was made from if they are still there, else files of the folder.
    """
    known = _known(folder / WORK / LOCAL)
    filled = dict(values)
    for name in ("source", "imatrix", "work", "recipes", "texts", "gptq"):
        given = values.get(name)
        if isinstance(given, str):
            filled[name] = _local(given, known.get(name), folder)
        elif isinstance(given, list):
            filled[name] = [_local(each, known.get(name), folder) if isinstance(each, str) else each for each in given]
    if "work" not in filled and isinstance(known.get("work"), Mapping):
        filled["work"] = _local("", known["work"], folder)
    return filled


def _local(given: str, known: Any, folder: Path) -> str:
    """Return what a value was made from, or a file of that name in the folder; the value itself if there is neither."""
    path = known.get(given) if isinstance(known, Mapping) else None
    if isinstance(path, str) and Path(path.partition("=")[2] or path).exists():
        return path
    name, equals, file = given.rpartition("=")
    return f"{name}{equals}{folder / file}" if file and (folder / file).is_file() else given


def _known(path: Path) -> Mapping[str, Any]:
    try:
        return read_json_object(path) if path.is_file() else {}
    except FileError:
        return {}
