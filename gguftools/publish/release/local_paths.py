"""Write settings of a release for strangers: no folder of the machine that it was made on is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...io.naming import is_remote
from ...measurement.texts import named_texts
from ...provenance.hashing import file_digest
from ...provenance.manifest import public_name
from ..names import PublishedName
from .local_values import LOCAL
from .plan import ReleasePlan
from .settings import NO_IMATRIX, OWN_TEXTS, ReleaseOptions, is_matrix, is_on_hub, settings_text

__all__ = ["LOCAL", "Published", "published"]


@dataclass(frozen=True)
class Published:
    """Settings as they are published. local: setting → value → local path."""

    toml: str
    local: dict[str, dict[str, str]]


def published(source: str, settings: ReleaseOptions, plan: ReleasePlan) -> Published:
    """Return settings that name sources by what others can get: a repository's commit, names and digests of files."""
    local: dict[str, dict[str, str]] = {}
    digests: dict[str, str] = {}

    def shown(setting: str, given: str, public: str) -> str:
        local.setdefault(setting, {})[public] = str(Path(given).absolute())
        return public

    def text(setting: str, given: str) -> str:
        path = named_texts([given])[0].path
        prefix = given[: len(given) - len(str(path))] if given.endswith(str(path)) else ""
        digests[path.name] = file_digest(path)
        public = f"{prefix}{path.name}"
        local.setdefault(setting, {})[public] = f"{prefix}{path.absolute()}"
        return public

    imatrix = settings.imatrix
    if is_matrix(imatrix):
        imatrix = shown("imatrix", imatrix, PublishedName(plan.name, "", "imatrix").file)
    elif imatrix not in (NO_IMATRIX, OWN_TEXTS):
        imatrix = text("imatrix", imatrix)
    changed: dict[str, Any] = {
        "imatrix": imatrix,
        "texts": tuple(text("texts", each) for each in settings.texts),
        "gptq": tuple(text("gptq", each) for each in settings.gptq),
        "recipes": tuple(
            shown("recipes", each, Path(each).name) if Path(each).is_file() else each for each in settings.recipes
        ),
        "work": "",
    }
    if settings.work:
        shown("work", settings.work, "")
    if is_on_hub(source):
        name = f"{source.partition('@')[0].rstrip('/')}@{plan.commit}"
    else:
        name = public_name(source) if is_remote(source) else shown("source", source, public_name(source))
    remarks = [f"SHA-256 of {file}: {digest}" for file, digest in digests.items()]
    return Published(settings_text(name, {**vars(settings), **changed}, remarks), local)
