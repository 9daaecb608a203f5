"""Call the hub's API through huggingface_hub, and turn its errors into ours: one line, a way out, and never a token.

The token is that of huggingface_hub: HF_TOKEN, or what `hf auth login` saved.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import logging, validate_repo_id

from quants.errors import FileError, GgufToolsError, OptionError

from ...io.stores.http import NETWORK_ERRORS
from ...io.stores.hub import RemoteFile
from ...io.stores.path import redacted
from ...io.stores.retries import TRANSIENT

HOW_TO_LOG_IN = "run `hf auth login`, or set HF_TOKEN; tokens are made at {}/settings/tokens"
OTHER_TYPES = ("dataset", "space")


class PassingError(GgufToolsError):
    """Report an error that may pass: a lost connection, a busy server."""


@dataclass(frozen=True)
class Account:
    """Describe whose token it is. can_write: False for a token that may only read."""

    name: str
    organizations: tuple[str, ...]
    can_write: bool


@dataclass(frozen=True)
class Target:
    """Name a model's repository that is written, and how it is called. revision: a branch or refs/pr/N."""

    api: HfApi
    repo: str
    revision: str = constants.DEFAULT_REVISION

    @property
    def endpoint(self) -> str:
        return str(self.api.endpoint)


@dataclass(frozen=True)
class Contents:
    """Hold what a repository has. exists, has_revision: False where there is none. files: by path."""

    exists: bool
    has_revision: bool
    private: bool
    files: dict[str, RemoteFile]


def target_of(repository: str, revision: str | None) -> Target:
    """Return what ORG/NAME and a revision name. Raises OptionError for what names no repository of a namespace."""
    if not isinstance(repository, str):
        raise OptionError(f"the repository is {type(repository).__name__}; ORG/NAME was expected")
    name = repository.removeprefix("hf://").strip("/")
    shown = redacted(repr(repository))
    if "/" not in name:
        raise OptionError(f"{shown} has no namespace", "write ORG/NAME: your account or an organization, and a name")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise OptionError(f"{shown} names no repository: {_line(error)}", "write ORG/NAME") from None
    if revision is not None and not revision:
        raise OptionError("the revision is empty; a branch or refs/pr/N was expected")
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    return Target(HfApi(endpoint=endpoint, library_name="gguftools"), name, revision or constants.DEFAULT_REVISION)


def account_of(target: Target) -> Account:
    """Return whose token it is. Raises FileError without one, or if the hub does not know it."""
    if not has_token():
        raise FileError("there is no token to write to the hub with", HOW_TO_LOG_IN.format(target.endpoint))
    with explained(target, "ask whose token it is"):
        answer = target.api.whoami()
    token = answer.get("auth", {}).get("accessToken", {}) if isinstance(answer.get("auth"), dict) else {}
    organizations = tuple(str(each.get("name")) for each in answer.get("orgs", ()) if isinstance(each, dict))
    return Account(str(answer.get("name")), organizations, token.get("role") != "read")


def has_token() -> bool:
    return bool(get_token())


def contents_of(target: Target) -> Contents:
    """Return what the repository has at the revision. Raises FileError."""
    with explained(target, "list its files"):
        try:
            info = target.api.repo_info(target.repo, repo_type="model")
        except RepositoryNotFoundError:
            return Contents(False, False, False, {})
        try:
            listed = target.api.list_repo_tree(target.repo, recursive=True, revision=target.revision, repo_type="model")
            files = {each.path: _remote_file(each) for each in listed if hasattr(each, "blob_id")}
        except RevisionNotFoundError:
            return Contents(True, False, bool(info.private), {})
    return Contents(True, True, bool(info.private), files)


def _remote_file(listed: Any) -> RemoteFile:
    return RemoteFile(listed.path, listed.size, listed.blob_id, listed.lfs.sha256 if listed.lfs else None)


def type_of_other(target: Target) -> str | None:
    """Return "dataset" or "space" where one has the name that a model is to get. Raises FileError."""
    for repo_type in OTHER_TYPES:
        with explained(target, "look for other repositories of the name"):
            try:
                target.api.repo_info(target.repo, repo_type=repo_type)
            except RepositoryNotFoundError:
                continue
            return repo_type
    return None


@contextmanager
def explained(target: Target, what: str, account: Account | None = None) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network into ours. what: "do this", for messages."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings name addresses with signatures
    try:
        yield
    except GgufToolsError:
        raise
    except Exception as error:
        cause = error
        while isinstance(cause, RuntimeError) and isinstance(cause.__cause__, Exception):
            cause = cause.__cause__  # huggingface_hub's name for the file that failed
        raised = _explained(cause, target, what, account)
        if raised is None:
            raise
        raise raised from OSError(_line(cause))  # not from the error itself, which may hold the token
    finally:
        logging.set_verbosity(level)


def _explained(error: Exception, target: Target, what: str, account: Account | None) -> GgufToolsError | None:
    """Return our error for one of a library; None for one that is not expected."""
    where = f"{target.repo} at {target.endpoint}: cannot {what}"
    if isinstance(error, HfHubHTTPError) and (status := _status(error)):
        return _refused(error, status, where, target, account)
    if isinstance(error, OSError) and error.filename:
        return FileError(f"{error.filename} cannot be read: {error.strerror}")
    if isinstance(error, NETWORK_ERRORS):
        return PassingError(f"{where}: {_line(error)}", "check the connection and HF_ENDPOINT")
    if isinstance(error, (JSONDecodeError, KeyError, AttributeError, TypeError)):
        return FileError(f"{where}: {_line(error)}", "the answer is not one that the hub gives: check HF_ENDPOINT")
    if isinstance(error, ValueError):  # huggingface_hub's for what the hub refuses, in several lines
        return FileError(f"{where}: {_line('; '.join(str(error).splitlines()))}")
    if isinstance(error, RuntimeError):  # hf_xet's
        return PassingError(f"{where}: {_line(error)}", "check the connection")
    return None


def _refused(error: HfHubHTTPError, status: int, where: str, target: Target, account: Account | None) -> GgufToolsError:
    said = f": {_line(error.server_message)}" if getattr(error, "server_message", None) else ""
    if status in TRANSIENT:
        return PassingError(f"{where}: status {status}{said}", "try again later")
    if status == 401:
        source = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "the saved token"
        problem = f"{where}: the hub does not accept {source}" if has_token() else f"{where}: the hub wants a token"
        return FileError(problem, HOW_TO_LOG_IN.format(target.endpoint))
    if status == 403:
        return FileError(f"{where}: the token may not do that{said}", _who(target, account))
    if status in (404, 410):
        return FileError(f"{where}: it is not there{said}", _who(target, account))
    return FileError(f"{where}: status {status}{said}", _who(target, account))


def _who(target: Target, account: Account | None) -> str:
    """Return a hint about whom the token belongs to."""
    if account is None:
        return "check the name, and what the token may do"
    places = ", ".join([account.name, *account.organizations])
    return f"the token is {account.name}'s, with the namespaces {places}; it needs the right to write to {target.repo}"


def _status(error: HfHubHTTPError) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _line(error: object) -> str:
    """Return the first line of an error that has one, without credentials."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    token = get_token()
    return redacted(line.replace(token, "…") if token else line)
