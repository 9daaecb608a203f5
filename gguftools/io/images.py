"""Image files, decoded by Pillow (extra `images`)."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archs.bounded_files import IMAGE, read_bytes
from quants.arguments import PathLike
from quants.errors import FileError, GgufToolsError, OptionError

if TYPE_CHECKING:
    from PIL.Image import Image

EXTRA = 'install the extra: pip install "gguftools[images]"'
# The decoders that a file may reach, whatever its name. Others of Pillow's start programs (EPS: Ghostscript) or are
# hardly ever used, and so hardly ever tested.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 1 << 26
Source = PathLike | Any  # a file, an array (height, width, 3) of 0…255, or an image of Pillow's


def open_image(source: Source) -> "Image":
    """Decode an image to RGB, turned upright by its EXIF orientation; of an animation, the first frame.

    Raises FileError for an unknown format or a damaged file, OptionError for more than MAX_PIXELS pixels or an object
    that is no image, GgufToolsError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise GgufToolsError("images are read by Pillow, which is not installed", EXTRA) from error
    if isinstance(source, Image.Image):
        return _upright(source.copy())
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
            problem = f"an image is an array {list(source.shape)} of {source.dtype}"
            raise OptionError(problem, "(height, width, 3) of uint8 is expected")
        return Image.fromarray(np.ascontiguousarray(source))
    try:
        path = Path(source)
    except TypeError:
        raise OptionError(f"an image is a {type(source).__name__}", "a path or an array is expected") from None
    return _decoded(path)


def _decoded(path: Path) -> "Image":
    """Decode a file. Its header's size is checked before pixels are decoded."""
    from PIL import Image, UnidentifiedImageError

    try:
        content = io.BytesIO(read_bytes(path, IMAGE))
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a folder", "an image is expected") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels, which are counted below, and of odd tags
            with Image.open(content, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise OptionError(_too_large(path, image.width, image.height), "make it smaller first")
                return _upright(image)
    except Image.DecompressionBombError:
        raise OptionError(f"{path} has too many pixels; at most {MAX_PIXELS:,} are read", "make it smaller") from None
    except UnidentifiedImageError:
        known = "PNG, JPEG, WebP, GIF, BMP and TIFF are"
        raise FileError(f"{path} is not an image that can be read", f"{known}: convert it to one of these") from None
    except GgufToolsError:
        raise
    except Exception as error:  # decoders raise whatever damaged files make of them, struct.error and MemoryError too
        raise FileError(f"{path} is not a whole image: {error or type(error).__name__}") from error


def _upright(image: "Image") -> "Image":
    """Turn an image by its EXIF orientation and convert it to RGB, with as few copies as possible."""
    from PIL import ImageOps

    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return image.convert("RGB") if image.mode != "RGB" else image


def _too_large(path: Path, width: int, height: int) -> str:
    return f"{path} has {width:,} × {height:,} pixels; at most {MAX_PIXELS:,} are read"
