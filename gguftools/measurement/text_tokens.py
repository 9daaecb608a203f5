"""What is in a text file, and as which tokens a model reads it."""

from archs import bounded_files
from quants.arguments import PathLike, as_path
from quants.errors import FileError

from ..io.naming import hint_for_absent
from ..models.model import Model


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
        read = bounded_files.read_text(path, bounded_files.TEXT)
    except FileError as error:
        raise FileError(str(error), hint_for_absent(path) or error.hint) from error
    return read.replace("\r\n", "\n").replace("\r", "\n") if "\r" in read else read
