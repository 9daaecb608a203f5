"""What is in a text file, and as which tokens a model reads it."""

from quants.arguments import PathLike, as_path
from quants.errors import FileError

from ..files.naming import hint_for_absent
from ..model import Model


def tokens_of(model: Model, text: PathLike) -> tuple[list[int], int | None]:
    """A file's text as the model's tokens; the one that begins every window, None if the vocabulary adds none.

    Raises as `read_text` does, and VocabularyError.
    """
    tokenizer = model.tokenizer
    return tokenizer.encode(read_text(text)), tokenizer.bos if tokenizer.add_bos else None


def read_text(text: PathLike) -> str:
    """What is in a UTF-8 file. Raises FileError, OptionError for what is no path."""
    path = as_path(text, "the text")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint_for_absent(path)) from error
