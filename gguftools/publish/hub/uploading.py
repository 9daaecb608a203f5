"""Upload a folder to a repository of the hub: check it, compare it, send only what differs, the model card last."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from ...io.naming import few, refuse_store
from ...io.stores.path import located
from ...writing.report import Report
from .checks import LocalFile, Progress, check_folder, found_files, is_ignored, with_digests
from .client import Account, Contents, Target, account_of, contents_of, explained, has_token, target_of, type_of_other
from .fetching import patterns
from .sending import Delivery, Sent, is_same

NEW, CHANGED, EQUAL, DELETED, ONLY_THERE = "new", "changed", "equal", "deleted", "only there"
PULL_REQUESTS = "refs/pr/"


@dataclass(frozen=True)
class UploadOptions:
    """Options of an upload.

    private: make a new repository private. revision: a branch, which is made if it is missing, or refs/pr/N. create_pr:
    open a pull request in place of a commit. delete: also delete files of the repository that the folder does not have.
    exclude: patterns of files that are not uploaded. message: of the commits. no_check: upload GGUF files that are not
    sound, too.
    """

    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    delete: bool = False
    exclude: str | Iterable[str] = ()
    message: str | None = None
    no_check: bool = False


@dataclass(frozen=True)
class UploadedFile:
    """Describe a file of the folder or of the repository.

    state: "new", "changed" or "equal"; of a file that the folder does not have: "deleted", or "only there".
    """

    file: str
    size_bytes: int
    sha256: str | None
    state: str


@dataclass(frozen=True)
class UploadReport(Report):
    """Report what was uploaded, or would be.

    created: the repository was, or would be, made. ignored: files of the folder that are not uploaded. commits: those
    that were made. pull_request: the address of the one that was opened.
    """

    also = ("to_upload_bytes",)

    repository: str
    url: str
    revision: str
    created: bool
    files: tuple[UploadedFile, ...]
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]
    dry_run: bool
    commits: tuple[str, ...] = ()
    pull_request: str | None = None
    seconds: float = 0.0

    @property
    def to_upload_bytes(self) -> int:
        """Return the bytes of new and changed files."""
        return sum(each.size_bytes for each in self.files if each.state in (NEW, CHANGED))


NO_OPTIONS = UploadOptions()


def upload(
    folder: PathLike,
    repository: str,
    options: UploadOptions = NO_OPTIONS,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> UploadReport:
    """Upload a folder's files to a model's repository, which is made if it is missing.

    repository: ORG/NAME. options: private, revision, create_pr and others. dry_run: only check and compare.
    progress(bytes done, of how many, file). The token is HF_TOKEN, or what `hf auth login` saved. Before anything is
    sent, files are checked: GGUF headers, SHA256SUMS, the model card's front matter. Files that the repository has are
    not sent; an interrupted upload is continued by the same call.

    Raises OptionError for wrong arguments; FileError for a folder that fails a check, a token that is missing, wrong or
    may not write, a repository of another type, a lost network, and a file that is changed meanwhile.
    """
    began, place = time.monotonic(), located(as_path(folder, "the folder"))
    refuse_store(place)
    target, exclude = _target(repository, options), patterns(options.exclude, "exclude")
    paths, ignored = found_files(place, exclude)
    warnings = check_folder(paths, options.no_check)
    account = None if dry_run and not has_token() else account_of(target)
    if account is not None and not account.can_write:
        raise FileError(f"the token of {account.name} may only read", "make one with the right to write")
    contents = contents_of(target)
    _check_repository(target, contents, options)
    files, more = with_digests(place, paths, progress)
    compared = _compare(files, contents, options.delete, exclude)
    report = UploadReport(
        target.repo,
        f"{target.endpoint}/{target.repo}",
        target.revision,
        not contents.exists,
        compared,
        tuple(ignored),
        (*warnings, *more),
        dry_run,
    )
    if dry_run or account is None:
        return report
    delivery = _send(target, account, options, contents, files, report, progress)
    return replace(
        report,
        revision=delivery.target.revision,
        commits=tuple(delivery.commits),
        warnings=(*report.warnings, *delivery.warnings),
        pull_request=delivery.pull_request,
        seconds=time.monotonic() - began,
    )


def _target(repository: str, options: UploadOptions) -> Target:
    """Return the repository and revision. Raises OptionError for options that contradict each other."""
    if not isinstance(options, UploadOptions):
        raise OptionError(f"options is {type(options).__name__}; UploadOptions was expected")
    target = target_of(repository, options.revision)
    if options.create_pr and options.revision is not None:
        raise OptionError("`create_pr` opens a pull request against main; `revision` names another", "leave one out")
    if options.message is not None and not options.message.strip():
        raise OptionError("the commit message is empty", "write one, or leave it out")
    return target


def _check_repository(target: Target, contents: Contents, options: UploadOptions) -> None:
    """Raise FileError if the repository is of another type, or not as the options want it."""
    if contents.exists:
        if options.private and not contents.private:
            hint = "make it private in its settings, or leave `private` out"
            raise FileError(f"{target.repo} is public already; only a new repository is made private", hint)
        if not contents.has_revision and target.revision.startswith(PULL_REQUESTS):
            raise FileError(f"{target.repo} has no pull request {target.revision}", "open one with `create_pr`")
        return
    if (other := type_of_other(target)) is not None:
        hint = "name another; or, if a model is to have the same name, make its repository on the hub first"
        raise FileError(f"{target.repo} is a {other}, not a model", hint)
    if options.create_pr or target.revision.startswith(PULL_REQUESTS):
        raise FileError(f"there is no repository {target.repo} to open a pull request in", "check the name")


def _compare(
    files: Sequence[LocalFile], contents: Contents, delete: bool, exclude: Sequence[str]
) -> tuple[UploadedFile, ...]:
    """Return what is done with each file. Hidden files of the repository, as .gitattributes, and excluded ones stay."""
    compared = []
    for file in files:
        there = contents.files.get(file.path)
        state = NEW if there is None else EQUAL if is_same(file, there) else CHANGED
        compared.append(UploadedFile(file.path, file.size, file.sha256, state))
    own = {file.path for file in files}
    for path, there in contents.files.items():
        if path not in own and not is_ignored(path, exclude):
            compared.append(UploadedFile(path, there.size, there.sha256, DELETED if delete else ONLY_THERE))
    return tuple(compared)


def _send(
    target: Target,
    account: Account,
    options: UploadOptions,
    contents: Contents,
    files: Sequence[LocalFile],
    report: UploadReport,
    progress: Progress | None,
) -> Delivery:
    """Make what is missing, send what differs, and check that it is there."""
    states = {each.file: each.state for each in report.files}
    wanted = [file for file in files if states[file.path] != EQUAL]
    delete = [path for path, state in states.items() if state == DELETED]
    if not contents.exists:
        with explained(target, "make the repository", account):
            target.api.create_repo(target.repo, private=options.private or None, repo_type="model", exist_ok=True)
    if not contents.has_revision and target.revision != "main":
        with explained(target, f"make the branch {target.revision}", account):
            target.api.create_branch(target.repo, branch=target.revision, repo_type="model", exist_ok=True)
    delivery = Delivery(
        target, account, options.message or "", options.create_pr, progress, Sent(report.to_upload_bytes)
    )
    delivery.send(wanted, delete)
    if wanted or delete:
        there = contents_of(delivery.target).files
        wrong = [file.path for file in wanted if not is_same(file, there.get(file.path))]
        if wrong:
            problem = f"{target.repo} has not the files that were sent: {few(wrong)}"
            raise FileError(problem, "another program may have changed them; run it again")
    return delivery
