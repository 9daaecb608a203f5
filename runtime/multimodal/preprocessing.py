"""Preprocess an image for an encoder: resize it, cut it into tiles and normalize it, by the mmproj file.

Images are Pillow's, in RGB, so that resized images have the bytes of transformers' image processors. Sources:
transformers `models/{gemma3,siglip,llava,clip,pixtral,idefics3,smolvlm,got_ocr2,qwen2_vl,glm4v,paddleocr_vl,lfm2_vl,
llama4,gemma4,gemma4_unified,step3p7,siglip2,kimi_k25,glm5_next,hunyuan_vl,minimax_m3_vl,muse_glimmer,minicpmv4_6,
llava_next,deepseek_ocr2,unlimited_ocr}/image_processing_*.py`; for Youtu-VL and CogVLM the code published with them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quants.errors import ModelError, OptionError

from ..arrays import Floats
from .layers import fitting
from .vision import VisionEncoder

if TYPE_CHECKING:
    from PIL.Image import Image

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3  # of Pillow's `Resampling`
MAX_PIXELS = 1 << 26  # of all tiles of an image
THINNEST = 200  # maximum ratio of the longer side to the shorter
LONGEST = 4096  # of Idefics 3: pixels a side
LFM2_TILE, LFM2_TOKENS = 512, (64, 256)  # missing in LFM2-VL's files: of a tile's side, and of a whole image
LLAMA4_TILES = 16
GEMMA4_TOKENS = 280
MIN_CROP, LONG = 256, 1.2  # of Gemma 3: pixels a side of a crop, and the ratio from which an image is cropped
MINICPM_TILES = 9
OCR_TILES = {"deepseekocr": 640, "deepseekocr2": 768}  # pixels a side of DeepSeek-OCR's
GREY = (127, 127, 127)
KIMI_SIDE = 512  # maximum patches a side
STEP3_TILE = 504  # pixels a side of Step 3's image parts


@dataclass(frozen=True)
class Tiles:
    """Preprocessed parts of an image. pixels: float32 (3, height, width) each. rows, columns: of tiles, after which the
    whole image comes once more (before them, with MiniCPM-V); 0 for an image that was not cut. size: height and width
    of the original image.
    """

    pixels: Sequence[Floats]
    rows: int = 0
    columns: int = 0
    size: tuple[int, int] = (0, 0)


def tiles(encoder: VisionEncoder, image: "Image", max_tokens: int | None = None) -> Tiles:
    """Return the image preprocessed for an encoder. max_tokens: for encoders of images of any size.

    Raises OptionError for an image that is too thin for this, ModelError for an encoder with unusable keys.
    """
    if max(image.size) > THINNEST * min(image.size):
        raise OptionError(
            f"an image of {image.width} × {image.height} pixels; at most {THINNEST} times as long as wide is read"
        )
    if encoder.projector not in PREPARED:
        raise ModelError(f"images for encoders of the type {encoder.projector!r} are not prepared")
    with fitting():
        images, rows, columns = PREPARED[encoder.projector](encoder, image, max_tokens)
        if (total := sum(math.prod(each.size) for each in images)) > MAX_PIXELS:
            raise ModelError(f"an image becomes {total:,} pixels for this encoder; {MAX_PIXELS:,} are the most")
        pixels = [encoder.normalized(np.asarray(each)) for each in images]
    return Tiles(pixels, rows, columns, (image.height, image.width))


Cut = tuple[list["Image"], int, int]


def _panned(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Gemma 3: a square, whatever its sides; then crops of a long image ("pan and scan"), as many as
    `max_tokens` allows, and none without it.
    """
    side = encoder.image_size
    tokens = (side // encoder.patch_size // int(encoder.key("projector.scale_factor"))) ** 2
    max_crops = (max_tokens or 0) // tokens - 1
    long, short = max(image.size), min(image.size)
    count = min(max_crops, max(2, min(long // MIN_CROP, math.floor(long / short + 0.5))))
    length = math.ceil(long / max(1, count))
    images = [image]
    if max_crops >= 2 and long / short >= LONG and min(length, short) >= MIN_CROP:
        wide = image.width >= image.height
        for start in range(0, length * count, length):
            end = min(start + length, long)
            images.append(image.crop((start, 0, end, short) if wide else (0, start, short, end)))
    return [each.resize((side, side), BILINEAR) for each in images], 0, 0


def _square(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for CogVLM and Gemma 3n: a square, whatever its sides."""
    return [image.resize((encoder.image_size,) * 2, BICUBIC if encoder.projector == "cogvlm" else BILINEAR)], 0, 0


def _cropped(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Llava 1.5: crop the middle."""
    side, shortest = encoder.image_size, min(image.size)
    width, height = (side if length == shortest else int(side * length / shortest) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    return [image.resize((width, height), BICUBIC).crop((left, top, left + side, top + side))], 0, 0


def _padded(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Janus: pad to a square of the mean colour."""
    side, colours = encoder.image_size, (int(255 * value) for value in encoder.key("image_mean"))
    width, height = (max(round(length * (side / max(image.size))), 14) for length in image.size)
    whole = image.copy().resize((side, side))
    whole.paste(tuple(colours), (0, 0, side, side))
    whole.paste(image.resize((width, height), BICUBIC), ((side - width) // 2, (side - height) // 2))
    return [whole], 0, 0


def _within_size(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Pixtral: no side longer than the largest, both in whole patches."""
    unit = encoder.patch_size * int(encoder.key("spatial_merge_size"))
    longest = encoder.key("preproc_image_size") if encoder.projector == "lightonocr" else encoder.image_size
    ratio = max(image.size) / int(longest)
    sides: list[int] = [int(side // ratio) if ratio > 1 else side for side in image.size]
    units = [max(1, -(-side // unit)) for side in sides]
    if max_tokens is not None and units[0] * units[1] > max_tokens:
        shrunk = math.sqrt(max_tokens / (units[0] * units[1]))
        units = [max(1, math.floor(each * shrunk)) for each in units]
    return [image.resize((units[0] * unit, units[1] * unit), BICUBIC)], 0, 0


def _of_area(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Qwen: about the original number of pixels, within limits, both sides in whole squares of
    patches.
    """
    unit, height, width = encoder.token_side, image.height, image.width
    min_pixels, max_pixels = int(encoder.key("image_min_pixels")), int(encoder.key("image_max_pixels"))
    if max_tokens is not None:
        max_pixels = min(max_pixels, max_tokens * unit**2)
        min_pixels = min(min_pixels, max_pixels)
    if min(height, width) < unit and encoder.projector == "glm4v":
        height, width = (int(side * max(unit / height, unit / width)) for side in (height, width))
    elif min(height, width) < unit and encoder.projector == "paddleocr":
        short = min(height, width)
        height, width = (unit if side == short else round(side * unit / short) for side in (height, width))
    height, width = area_size(height, width, unit, min_pixels, max_pixels)
    while max_tokens is not None and height * width > max_tokens * unit**2:  # an enlarged or thin image may exceed it
        height, width = (side - unit * (side == max(height, width)) for side in (height, width))
    return [image.resize((width, height), BICUBIC)], 0, 0


def area_size(height: int, width: int, unit: int, min_area: int, max_area: int, min_side: int = 0) -> tuple[int, int]:
    """Return sides in whole units, of about this many pixels, in about the same proportion."""
    sides = [max(min_side, round(side / unit) * unit) for side in (height, width)]
    if sides[0] * sides[1] > max_area:
        shrunk = math.sqrt(height * width / max_area)
        sides = [max(unit, math.floor(side / shrunk / unit) * unit) for side in (height, width)]
    elif sides[0] * sides[1] < min_area:
        grown = math.sqrt(min_area / (height * width))
        sides = [math.ceil(side * grown / unit) * unit for side in (height, width)]
    return sides[0], sides[1]


def _split(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Idefics 3: tiles of the encoder's size, and the whole image in that size."""
    side, longest = encoder.image_size, min(int(encoder.key("preproc_image_size")) or max(image.size), LONGEST)
    width, height = _to_longest(image.width, image.height, longest)
    image = image.resize((width, height), LANCZOS)
    if width >= height:
        wide = -(-width // side) * side
        high = -(-int(wide / (width / height)) // side) * side
    else:
        high = -(-height // side) * side
        wide = -(-int(high * (width / height)) // side) * side
    image = image.resize((wide, high), LANCZOS)
    if wide == high == side:
        return [image], 0, 0
    return [*_pieces(image, side), image.resize((side, side), LANCZOS)], high // side, wide // side


def _to_longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return sides with the longer one at this length, the other one even."""
    ratio = width / height
    if width >= height:
        other = int(longest / ratio)
        return longest, max(other + other % 2, 1)
    other = int(longest * ratio)
    return max(other + other % 2, 1), longest


def _in_proportion(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for InternVL: the number of tiles that fits the image's proportion best, and the whole image after
    them.
    """
    side = encoder.image_size
    min_tiles, max_tiles = int(encoder.key("preproc_min_tiles")), int(encoder.key("preproc_max_tiles"))
    columns, rows = _proportion(image.width, image.height, side, min_tiles, max_tiles)
    cut = _pieces(image.resize((columns * side, rows * side), BICUBIC), side)
    if len(cut) > 1:
        cut.append(image.resize((side, side), BICUBIC))
    return cut, 0, 0


def _proportion(width: int, height: int, side: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """Return columns and rows of tiles; of equally near proportions the larger, if the image fills half of it."""
    grids = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles // columns + 1)
        if columns * rows >= min_tiles
    ]
    if not grids:
        raise ModelError(f"the file wants {min_tiles} tiles or more, and {max_tiles} or fewer")
    best, distance = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        far = abs(width / height - columns / rows)
        if far < distance or (far == distance and width * height > 0.5 * side * side * columns * rows):
            best, distance = (columns, rows), far
    return best


def _pieces(image: "Image", side: int) -> list["Image"]:
    """Return tiles by row and column."""
    return [
        image.crop((left, top, left + side, top + side))
        for top in range(0, image.height, side)
        for left in range(0, image.width, side)
    ]


def _tiled_if_large(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for LFM2: about the original number of pixels, within limits; a large image in tiles, too."""
    unit, min_tokens, limit = encoder.token_side, *LFM2_TOKENS
    limit = limit if max_tokens is None else min(limit, max_tokens)
    area = (min(min_tokens, limit) * unit**2, limit * unit**2)
    height, width = area_size(image.height, image.width, unit, *area, min_side=unit)
    whole = image.resize((width, height), BILINEAR)
    size = math.prod(max(encoder.patch_size, round(side / unit) * unit) for side in image.size)
    if max_tokens is not None or size <= 2 * limit * unit**2:
        return [whole], 0, 0
    columns, rows = _proportion(image.width, image.height, LFM2_TILE, 2, 10)
    cut = image.resize((columns * LFM2_TILE, rows * LFM2_TILE), BILINEAR)
    return [*_pieces(cut, LFM2_TILE), whole], rows, columns


def _enlarged(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Gemma 4: as large as the tokens allow."""
    unit, limit = encoder.token_side, GEMMA4_TOKENS if max_tokens is None else max_tokens
    factor = math.sqrt(limit * unit**2 / (image.width * image.height))
    columns, rows = (math.floor(factor * side / unit) for side in image.size)
    if not columns or not rows:  # thin enough for that
        long = min(max(image.size) // min(image.size), limit)
        columns, rows = (long if each else 1 for each in (columns, rows))
    return [image.resize((columns * unit, rows * unit), BICUBIC)], 0, 0


def _on_canvas(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Llama 4: the best fitting grid of tiles, padded with black, and the whole image."""
    side, (width, height) = encoder.image_size, image.size
    counts = range(1, LLAMA4_TILES + 1)
    grids = [(rows, columns) for rows in counts for columns in counts if rows * columns <= LLAMA4_TILES]
    scales = {grid: min(np.float32(grid[0] * side) / height, np.float32(grid[1] * side) / width) for grid in grids}
    larger = [scale for scale in scales.values() if scale >= 1]
    wanted = min(larger) if larger else max(scales.values())
    rows, columns = min((grid for grid in grids if scales[grid] == wanted), key=math.prod)
    room = min(max(height, side), rows * side), min(max(width, side), columns * side)
    high, wide = room[0] / height, room[1] / width
    if wide < high:
        size = room[1], max(1, min(math.floor(height * wide), room[0]))
    else:
        size = max(1, min(math.floor(width * high), room[1])), room[0]
    resized = image.resize(size, BILINEAR)
    cut = _pieces(resized.crop((0, 0, columns * side, rows * side)), side)  # a crop past the border is black
    if len(cut) == 1:
        return cut, 0, 0
    return [*cut, image.resize((side, side), BILINEAR)], rows, columns


def _in_windows(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Step 3: windows of one size, if the image is large or long, and all of it as a square."""
    side, longest = encoder.image_size, int(encoder.key("preproc_image_size"))
    whole = image
    if min(whole.size) < 32 and max(whole.size) > 4 * min(whole.size):
        whole = whole.crop((0, 0, max(whole.size), max(whole.size)))  # black below or on the right
    width, height = whole.size
    if max(width, height) > longest:
        width, height = (int(length * (longest / max(whole.size))) for length in whole.size)
    view = whole.resize((width, height), BILINEAR).resize((side, side), BILINEAR)
    short, long = sorted((width, height))
    if long <= side:
        window = short if long / short > 1.5 else 0
    else:
        window = min(short, STEP3_TILE) if long / short > 4 else STEP3_TILE
    if not window:
        return [view], 0, 0
    wide, high = (
        window * (length // window + (length % window > 0.2 * window)) if length >= window else length
        for length in (width, height)
    )
    cut = whole.resize((wide, high), BILINEAR)
    parts = [
        cut.crop((left, top, min(left + window, wide), min(top + window, high)))
        for top in range(0, high, window)
        for left in range(0, wide, window)
    ]
    small = [part.resize((STEP3_TILE, STEP3_TILE), BILINEAR) for part in parts]
    return [*small, view], -(-high // window), -(-wide // window)


def _in_patches(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Phi-4: the original size, in whole patches, within limits."""
    unit, size = encoder.patch_size, (image.height, image.width)
    min_patches, max_patches = (int(encoder.key(f"image_{end}_pixels")) // unit**2 for end in ("min", "max"))
    if max_tokens is not None:
        min_patches, max_patches = min(min_patches, max_tokens), min(max_patches, max_tokens)

    def scaled(factor: float) -> list[int]:
        return [max(1, math.ceil(side * factor / unit)) for side in size]

    units = scaled(1)
    if math.prod(units) > max_patches:
        units = scaled(_searched(lambda factor: math.prod(scaled(factor)) <= max_patches))
    elif math.prod(units) < min_patches:
        units = scaled(_searched(lambda factor: math.prod(scaled(factor)) <= min_patches))
    return [image.resize((units[1] * unit, units[0] * unit), BILINEAR)], 0, 0


def _sliced(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for MiniCPM-V: the whole image in about the size of a tile, and tiles in its proportion if it is
    larger.
    """
    side, unit, size = encoder.image_size, encoder.token_side, (image.height, image.width)
    rows, columns = _slices(*size, side)
    high, wide = _near(size, side, unit, enlarged=rows * columns == 1)
    whole = image.resize((wide, high), BICUBIC)
    if rows * columns == 1:
        return [whole], 0, 0
    part = max(round(size[0] / rows), 1), max(round(size[1] / columns), 1)
    height, width = _near(part, side, unit, enlarged=True)
    cut = image.resize((width * columns, height * rows), BICUBIC)
    parts = [
        cut.crop((column * width, row * height, (column + 1) * width, (row + 1) * height))
        for row in range(rows)
        for column in range(columns)
    ]
    return [whole, *parts], rows, columns


def _near(size: tuple[int, int], side: int, unit: int, *, enlarged: bool) -> tuple[int, int]:
    """Return sides in whole units, of about as many pixels as a tile has; of smaller images about their own."""
    height, width = size
    if height * width > side * side or enlarged:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return max(round(height / unit), 1) * unit, max(round(width / unit), 1) * unit


def _slices(height: int, width: int, side: int) -> tuple[int, int]:
    """Return rows and columns of tiles."""
    wanted = min(math.ceil(width * height / side**2), MINICPM_TILES)
    grids = [
        (rows, count // rows)
        for count in (wanted - 1, wanted, wanted + 1)
        if 1 < count <= MINICPM_TILES
        for rows in range(1, count + 1)
        if count % rows == 0
    ]
    if wanted <= 1:
        return 1, 1

    def distance(grid: tuple[int, int]) -> tuple[float, int]:
        return abs(math.log(width / height) - math.log(grid[1] / grid[0])), -grid[0]

    return min(grids, key=distance)


def _best_of_sizes(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Llava-NeXT: tiles of the size that loses least of the image, and the whole image in a tile."""
    side, sizes = encoder.image_size, [int(each) for each in encoder.key("image_grid_pinpoints")]
    if not sizes or len(sizes) % 2 or min(sizes) < 1:
        raise ModelError(f"the file has sizes of images {sizes}; pairs of width and height were expected")

    def fitting(width: int, height: int) -> tuple[int, int]:
        """Return the sides after fitting the image into a size in proportion."""
        wide, high = width / image.width, height / image.height
        if wide < high:
            return width, min(math.ceil(image.height * wide), height)
        return min(math.ceil(image.width * high), width), height

    def lost(size: tuple[int, int]) -> tuple[int, int]:
        scale = min(size[0] / image.width, size[1] / image.height)
        kept = min(int(image.width * scale) * int(image.height * scale), image.width * image.height)
        return -kept, size[0] * size[1] - kept

    width, height = min(zip(sizes[::2], sizes[1::2], strict=True), key=lost)
    if width % side or height % side:
        raise ModelError(f"the file has a size of {width} × {height} pixels, which are no tiles of {side}")
    fit = fitting(width, height)
    canvas = image.copy().resize((width, height))
    canvas.paste((0, 0, 0), (0, 0, width, height))
    canvas.paste(image.resize(fit, BICUBIC), ((width - fit[0]) // 2, (height - fit[1]) // 2))
    return [*_pieces(canvas, side), image.resize((side, side), BICUBIC)], height // side, width // side


def _view_and_tiles(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for DeepSeek-OCR: tiles of a large image, and all of it in the middle of a grey square."""
    side, tile = encoder.image_size, OCR_TILES[encoder.projector]
    factor = side / max(image.size)
    width, height = (max(round(length * factor), 1) for length in image.size)
    whole = image.copy().resize((side, side))
    whole.paste(GREY, (0, 0, side, side))
    whole.paste(image.resize((width, height), BICUBIC), ((side - width) // 2, (side - height) // 2))
    if max(image.size) <= tile:
        return [whole], 0, 0
    min_tiles, max_tiles = int(encoder.key("preproc_min_tiles")), int(encoder.key("preproc_max_tiles"))
    columns, rows = _proportion(image.width, image.height, tile, min_tiles, max_tiles)
    cut = image.resize((columns * tile, rows * tile), BICUBIC)
    return [*_pieces(cut, tile), whole], rows, columns


def _searched(fits: Callable[[float], bool], low: float = 1e-6, high: float = 100.0) -> float:
    """Return the largest factor that fits, to 1e-5, searched as in SigLIP 2's processor."""
    while high - low >= 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _on_black(image: "Image", size: Sequence[int], room: Sequence[int]) -> "Image":
    """Return the image resized, with black on its right and below it. size, room: width and height."""
    return image.resize((size[0], size[1]), BICUBIC).crop((0, 0, room[0], room[1]))


def _whole(sides: Sequence[float], unit: int) -> list[int]:
    """Return sides rounded up to whole units."""
    return [max(1, math.ceil(side / unit)) * unit for side in sides]


def _not_enlarged(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Kimi: the original size, within the maximum number of patches."""
    unit, patch = encoder.token_side, int(encoder.patch_size)
    max_patches = int(encoder.key("image_max_pixels")) // patch**2
    patches = math.prod(max(1, side // patch) for side in image.size)
    scale = min(1.0, math.sqrt(max_patches / patches), *(KIMI_SIDE * patch / side for side in image.size))

    def sides() -> list[int]:
        return [max(1, int(side * scale)) for side in image.size]

    while max_tokens is not None and math.prod(_whole(sides(), unit)) > max_tokens * unit**2:
        scale *= 0.98
    return [_on_black(image, sides(), _whole(sides(), unit))], 0, 0


def _budgeted(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for GLM 5: whole squares of patches, within limits, in its own proportion."""
    unit, (width, height) = encoder.token_side, image.size
    min_pixels, max_pixels = (int(encoder.key(f"image_{end}_pixels")) for end in ("min", "max"))
    if max_tokens is not None:
        max_pixels = min(max_pixels, max_tokens * unit**2)
        min_pixels = min(min_pixels, max_pixels)
    room = _whole(image.size, unit)
    if math.prod(room) < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        room = _whole([math.ceil(side * scale) for side in image.size], unit)
    if math.prod(room) > max_pixels:
        room, low, high = [unit, unit], 1, height
        while low <= high:
            middle = (low + high) // 2
            tried = _whole([max(1, width * middle // height), middle], unit)
            if math.prod(tried) <= max_pixels:
                room, low = tried, middle + 1
            else:
                high = middle - 1
    scale = min(wide / side for wide, side in zip(room, image.size, strict=True))
    scale = min(1.0, scale) if width * height >= min_pixels else scale
    return [_on_black(image, [max(1, math.floor(side * scale)) for side in image.size], room)], 0, 0


def _of_nearest_grid(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Muse Glimmer: the rows and columns of tokens nearest to its proportion."""
    unit = encoder.token_side
    limit = int(encoder.key("image_max_pixels")) // unit**2
    limit = limit if max_tokens is None else min(limit, max_tokens)
    rows, columns = image.height / unit, image.width / unit
    ratio = columns / rows
    if rows * columns > limit:
        rows = math.sqrt(limit / ratio)
        columns = rows * ratio
    grids = set(itertools.product(*((math.floor(count), math.ceil(count)) for count in (rows, columns))))
    fitting = [grid for grid in grids if min(grid) >= 1 and math.prod(grid) <= limit]  # of equals the set's first
    if not fitting:
        rows = max(1, min(round(rows), limit))
        fitting = [(rows, max(1, min(round(columns), limit // rows)))]
    rows, columns = min(fitting, key=lambda grid: abs(grid[0] / grid[1] - image.height / image.width))
    return [image.resize((int(columns) * unit, int(rows) * unit), LANCZOS)], 0, 0


def _shrunk(encoder: VisionEncoder, image: "Image", max_tokens: int | None) -> Cut:
    """Preprocess for Youtu-VL: the original size, or reduced in fiftieths until the number of patches fits."""
    unit = encoder.token_side
    max_pixels = int(encoder.key("image_max_pixels"))
    max_pixels = max_pixels if max_tokens is None else min(max_pixels, max_tokens * unit**2)
    scale, size = 1.0, _whole(image.size, unit)
    while math.prod(size) > max_pixels and scale > 0:
        scale -= 0.02
        size = _whole([side * scale for side in image.size], unit)
    return [image.resize((size[0], size[1]), BILINEAR)], 0, 0


Prepare = Callable[[VisionEncoder, Any, int | None], Cut]
PREPARED: dict[str, Prepare] = {
    **dict.fromkeys(("gemma3nv", "cogvlm"), _square),
    "gemma3": _panned,
    "mlp": _cropped,
    "pixtral": _within_size,
    "idefics3": _split,
    "internvl": _in_proportion,
    "lightonocr": _within_size,
    "lfm2": _tiled_if_large,
    "llama4": _on_canvas,
    "gemma4v": _enlarged,
    "janus_pro": _padded,
    "step3vl": _in_windows,
    "phi4": _in_patches,
    "gemma4uv": _enlarged,
    "nemotron_v2_vl": _in_proportion,
    **dict.fromkeys(OCR_TILES, _view_and_tiles),
    "resampler": _sliced,
    "minicpmv4_6": _sliced,
    "granite4_vision": _best_of_sizes,
    "kimivl": _not_enlarged,
    "kimik25": _not_enlarged,
    "glm5v": _budgeted,
    "muse-glimmer": _of_nearest_grid,
    "youtuvl": _shrunk,
    **dict.fromkeys(
        (
            "qwen2vl_merger",
            "qwen2.5vl_merger",
            "qwen3vl_merger",
            "qwen2.5o",
            "ling3vl",
            "glm4v",
            "paddleocr",
            "exaone4_5",
            "mimovl",
            "dots_ocr",
            "dots3note_v",
            "minimax_m3",
            "hunyuanvl",
        ),
        _of_area,
    ),
}
