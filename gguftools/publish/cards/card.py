"""Write the README of a folder of GGUF files, or bring its generated blocks up to date."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archs.bounded_files import CARD_TEXT, read_text
from quants.arguments import PathLike, wrong
from quants.errors import FileError, ModelError

from ...io.atomic import atomic_output, published_together
from ...writing.report import Report
from ..names import problems
from .folder import CARD, PublishedFolder, read_folder
from .front_matter import as_text, base_of, front_matter, hub_id, merged, split_front
from .markers import BLOCK, block, updated
from .ollama import OllamaModel, ollama_model
from .sections import CardFacts, blocks, usual

CONTEXT = 8192  # tokens that the advice counts with
EMPTY_BLOCK = "<!-- gguftools: files --> … <!-- /gguftools: files -->"


@dataclass(frozen=True)
class CardOptions:
    """What a card says that files do not.

    base_model: ORG/MODEL on the hub that the files were made from. repository: ORG/NAME where they are published.
    quantized_by: who made them. title: of the model. ollama: also write Modelfile, template, system and params.
    overwrite: replace a README that has no generated blocks, and files for Ollama that differ.

    Raises OptionError for a name that is not ORG/NAME.
    """

    base_model: str | None = None
    repository: str | None = None
    quantized_by: str | None = None
    title: str | None = None
    ollama: bool = True
    overwrite: bool = False

    def __post_init__(self) -> None:
        for what in ("base_model", "repository"):
            given = getattr(self, what)
            if given is not None and (not isinstance(given, str) or hub_id(given) is None):
                raise wrong(what, given, "ORG/NAME")


@dataclass(frozen=True)
class CardReport(Report):
    """What `card` did. files: those written, of README.md and of Ollama's; none if all were up to date. blocks: of the
    README; edited: of these, those left as a person changed them. warnings: what the card lacks, a line each.
    """

    file: Path
    files: list[str]
    blocks: list[str]
    edited: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def card(folder: PathLike, *, options: CardOptions = CardOptions()) -> CardReport:
    """Write the README.md of a folder of GGUF files, or update the generated blocks of the one that is there.

    What a person wrote outside of the blocks stays, and so does a block that was changed by hand. Figures come from
    divergence.json in the folder. options: what it says that files do not. Raises FileError for a folder without a
    model, and for a README without blocks.
    """
    read = read_folder(folder)
    first = read.models[0].model
    base = hub_id(options.base_model) if options.base_model else base_of(first.metadata)
    ollama = ollama_model(first)
    title = options.title or str(first.metadata.get("general.name") or Path(read.path).resolve().name)
    context = min(CONTEXT, first.context_length or CONTEXT)
    needed = _needed(read, context)
    facts = CardFacts(
        title, base, options.repository, ollama, options.ollama, context, needed.__getitem__ if needed else None
    )
    made = blocks(read, facts)
    target = read.path / CARD
    old = card_text(target, options.overwrite)
    front, text = split_front(old)
    tags = [*(["imatrix"] if read.of_role("imatrix") else []), *(["conversational"] if ollama.is_chat else [])]
    encoders = next((each.model.metadata for each in read.of_role("mmproj")), None)
    known = front_matter(
        first.metadata, base_model=base, quantized_by=options.quantized_by, tags=tags, encoders=encoders
    )
    if not text.strip():
        text = "\n\n".join([f"# {title} GGUF", *(block(name, each) for name, each in made.items())]) + "\n"
        edited = list[str]()
    else:
        result = updated(text, made)
        edited, text = result.edited, result.text.rstrip("\n") + "\n"
        text += "".join(f"\n{block(name, made[name])}\n" for name in result.missing)
    texts = {CARD: f"{as_text(merged(front, known))}\n{text.lstrip()}"}
    if options.ollama:
        texts |= _ollama_files(read, ollama)
    changed = [name for name, each in texts.items() if _differs(read.path / name, each)]
    left = [] if options.overwrite else [each for each in changed if each != CARD and (read.path / each).exists()]
    changed = [each for each in changed if each not in left]
    with published_together():
        for name in changed:
            with atomic_output(read.path / name, "w", True) as file:
                file.write(texts[name])
    warnings = [f"{each} differs and is left as it is: `overwrite` replaces it" for each in left]
    return CardReport(target, changed, list(made), edited, [*_warnings(read, known, ollama), *warnings])


def _needed(folder: PublishedFolder, context: int) -> dict[str, int]:
    """Return by name the bytes that models take on one device, as llama.cpp runs them; none if it does not."""
    from ...inspection.fitting import fit

    projector = next((folder.path / each.name for each in folder.of_role("mmproj")), None)
    try:
        fits = fit([each.model for each in folder.models], context=context, mmproj=projector).files
    except ModelError:
        return {}
    return {each.name: one.whole.device for each, one in zip(folder.models, fits, strict=True)}


def card_text(target: Path, overwrite: bool = False) -> str:
    """Return the text of a README to update; "" for none. Raises FileError for one without blocks."""
    if not target.exists():
        return ""
    text = read_text(target, CARD_TEXT)
    if BLOCK.search(text) or not split_front(text)[1].strip():
        return text
    if overwrite:
        return ""
    hint = f"put {EMPTY_BLOCK} where one belongs, or `overwrite`"
    raise FileError(f"{target} has no generated blocks to update", hint)


def _differs(path: Path, text: str) -> bool:
    return not path.is_file() or path.read_bytes() != text.encode()


def _ollama_files(folder: PublishedFolder, ollama: OllamaModel) -> dict[str, str]:
    """Return the files for Ollama by name: of the model that commands name, if it is one file."""
    file = usual(folder)
    files = {"params": ollama.params()}
    if file.shards == 1:
        files["Modelfile"] = ollama.modelfile(file.name)
    if ollama.template is not None:
        files |= {"template": ollama.template, "system": ollama.system or ""}
    return {name: text for name, text in files.items() if text}


def _warnings(folder: PublishedFolder, known: Mapping[str, Any], ollama: OllamaModel) -> list[str]:
    """Return what the card lacks, and what the hub will get wrong about names."""
    lacking = {
        "license": "the files name no license",
        "base_model": "the original's repository is not known: give `base_model`",
        "language": "the files name no language",
    }
    warnings = [words for key, words in lacking.items() if key not in known]
    warnings += ["figures are missing: divergence.json is not in the folder"] * (folder.results is None)
    unmeasured = [each.name for each in folder.models if folder.results and not (each.measured or each.is_base)]
    warnings += [f"not measured: {', '.join(unmeasured)}"] * bool(unmeasured)
    warnings += [problem for each in folder.models for problem in problems(each.name)]
    return [*warnings, *folder.unreadable, *ollama.remarks]
