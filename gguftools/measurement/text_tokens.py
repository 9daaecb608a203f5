"""Read text files, and tokenize them with a model's tokenizer."""

from archs import bounded_files
from quants.arguments import PathLike, as_path
from quants.errors import FileError

from ..io.naming import hint_for_absent
from ..models.model import Model


def tokens_of(model: Model, text: PathLike) -> tuple[list[int], int | None]:
    """Return a file's text as the model's tokens, and the token that begins each window (None if the vocabulary adds
    none).

    Raises as `read_text` does, and VocabularyError.
    """
    tokenizer = model.tokenizer
    return tokenizer.encode(read_text(text)), tokenizer.bos if tokenizer.add_bos else None


def read_text(text: PathLike) -> str:
    """Return the text of a UTF-8 file, line ends as line feeds.

    Raises FileError for a file that cannot be read or is not UTF-8, OptionError for a value that is not a path.
    """
    path = as_path(text, "the text")
    try:
        read = bounded_files.read_text(path, bounded_files.TEXT)
    except FileError as error:
        raise FileError(str(error), hint_for_absent(path) or error.hint) from error
    if read.count("\0") > len(read) // 3:  # ASCII in UTF-16 is valid UTF-8, in which every other byte is 0
        what = f"{path} is not text in UTF-8: {read.count(chr(0)):,} of its {len(read):,} characters are NUL"
        raise FileError(what, "save it as UTF-8; it looks like UTF-16")
    return read.replace("\r\n", "\n").replace("\r", "\n") if "\r" in read else read
