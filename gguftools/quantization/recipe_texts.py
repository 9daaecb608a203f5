"""Read and write recipes as text files: a rule for each tensor, as for `llama-quantize --tensor-type-file`.

That program takes every word for a rule and knows no comments. So a remark is a word that begins with `#`, has no
spaces, and ends like a rule: a rule that matches no tensor.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from archs.bounded_files import RULES, read_text
from quants.errors import FileError, OptionError

from .recipes import RECIPES, Recipe, recipe_named, storable_format

REMARK_END = "=F32"
ODD = re.compile(r"[^\w.,:;%/-]+", re.ASCII)  # what a remark must not have: spaces, and what means something in rules


def rules_for(formats: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return a rule for each tensor that matches only its name."""
    return tuple((f"^{re.escape(name)}$", form) for name, form in formats.items())


def recipe_text(rules: Iterable[tuple[str, str]], remarks: Iterable[str]) -> str:
    """Return the text of a recipe. rules: regular expression and format. remarks: lines at the start."""
    lines = [f"#{ODD.sub('_', remark)}{REMARK_END}" for remark in remarks]
    lines += [f"{pattern}={form}" for pattern, form in rules]
    return "\n".join(lines) + "\n"


def recipe_of(name: str, rules: Iterable[tuple[str, str]], description: str = "") -> Recipe:
    """Make a recipe of rules. Its file type is that of the recipe whose main format most rules have.

    Tensors without a rule get that format, too.
    """
    rules = tuple(rules)
    counts = Counter(form for _, form in rules if storable_format(form).is_quantized)
    default = counts.most_common(1)[0][0] if counts else "Q8_0"
    like = next((each for each in RECIPES.values() if each.default == default and each.name.endswith("_M")), None)
    like = like or next((each for each in RECIPES.values() if each.default == default), None)
    return Recipe(name, like.file_type if like else None, default, 0.0, description, rules=rules)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a text file: REGEX=TYPE, separated by white space. Raises FileError, FormatError."""
    text = read_text(path, RULES)
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        for word in [] if line.lstrip().startswith("#") else line.split():
            pattern, equals, form = word.partition("=")
            if not (pattern and equals and form):
                problem = f"{path}, line {number}: {word[:80]!r} is not REGEX=TYPE"
                raise FileError(problem, "a recipe is a text such as ^blk\\.0\\.attn_q\\.weight$=Q4_K")
            rules.append((pattern, storable_format(form).name))
    if not rules:
        raise FileError(f"{path} is no recipe: it has no rule REGEX=TYPE")
    return recipe_of(path.stem, rules, f"rules of {path.name}")


def recipe_or_file(name: str) -> tuple[Recipe, Path | None]:
    """Return the recipe of that name, or in that file, and the file. Raises OptionError, FileError, FormatError."""
    try:
        return recipe_named(name), None
    except OptionError:
        path = Path(str(name))
        if path.is_file():
            return read_recipe(path), path
        raise
