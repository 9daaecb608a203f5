"""The exception tree of the toolkit: everything that a user can cause and fix."""


class GgufToolsError(Exception):
    """A problem the user can fix. The message says what, where, what was found and what was expected.

    `hint` says what to do about it; the command line prints it on a second line.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class FormatError(GgufToolsError):
    """A tensor cannot be encoded to, or decoded from, a block format."""


class FileError(GgufToolsError):
    """A file is missing, damaged, or not what it claims to be."""


class ModelError(GgufToolsError):
    """A checkpoint's or a file's model that cannot be mapped or run."""


class VocabularyError(GgufToolsError):
    """A tokenizer is missing, inconsistent, or of a structure GGUF has no name for."""


class OptionError(GgufToolsError):
    """An argument names something that does not exist or contradicts another."""


class NumbaError(GgufToolsError):
    """The installed numba cannot compile the kernels: it is absent, too old or too new."""
