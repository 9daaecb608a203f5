"""Write the blocks of a model card: what there is, what to choose, how to run, verify and make it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quants.errors import GgufToolsError

from ...conversion.quantize import recipe_path
from ...io.gguf.shards import SHARD_NAME
from ...measurement.texts import default_texts
from ...metadata.chat_templates import rendered
from ...metadata.visible import visible
from ...provenance.manifest import Manifest, manifest_path, read_manifest
from ..names import hub_label
from ..report.card import described, markdown_text
from ..report.numbers import byte_size, fixed, percent, significant
from .advice import advice, choices
from .folder import RESULTS, SETTINGS, SUMS, PublishedFile, PublishedFolder
from .ollama import OllamaModel

PROMPT = ({"role": "system", "content": "{system_prompt}"}, {"role": "user", "content": "{prompt}"})
NOW = "2026-01-02T12:00:00"
TRANSFORMERS = frozenset(  # text models that transformers 5 reads of GGUF files (transformers/integrations/ggml.py)
    {
        *("bloom", "deci", "falcon", "gemma2", "gemma3", "gemma4", "gpt2", "gpt-oss", "lfm2", "llama", "mamba"),
        *("minimax-m2", "nemotron", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm", "starcoder2"),
    }
)


@dataclass(frozen=True)
class CardFacts:
    """What a card says besides what the folder's files say.

    title: of the model. base_model, repository: ORG/MODEL on the hub; None if unknown. has_modelfile: the folder has
    one, or will. needed: bytes of memory that a file takes with a context of `context` tokens; None if that is not to
    be given.
    """

    title: str
    base_model: str | None
    repository: str | None
    ollama: OllamaModel
    has_modelfile: bool
    context: int
    needed: Callable[[str], int] | None = None


def blocks(folder: PublishedFolder, facts: CardFacts) -> dict[str, str]:
    """Return all blocks of a card by name, in order; those that would be empty are left out."""
    made = {
        "summary": _summary(folder, facts),
        "choose": _choose(folder, facts),
        "files": _files(folder, facts),
        "prompt": _prompt(folder, facts),
        "run": _run(folder, facts),
        "verify": _verify(folder, facts),
        "made": _made(folder, facts),
    }
    return {name: text for name, text in made.items() if text}


def _summary(folder: PublishedFolder, facts: CardFacts) -> str:
    first = folder.models[0].model.metadata
    base = (
        f"[{facts.base_model}](https://huggingface.co/{facts.base_model})" if facts.base_model else _plain(facts.title)
    )
    lines = [f"GGUF files of {base}, made with gguftools."]
    if (license := first.get("general.license")) is None:
        lines.append("The files name no license: see the original model.")
    elif isinstance(license, str):
        lines.append(f"License: {_plain(license)}, as the original's.")
    if facts.base_model is None:
        lines.append("Which model of the hub they were made from is not recorded.")
    extra = {
        "mmproj": "the encoder of images or audio",
        "mtp": "the draft (MTP) layers",
        "imatrix": "the importance matrix",
    }
    for role, words in extra.items():
        for file in folder.of_role(role):  # type: ignore[arg-type]
            lines.append(f"`{file.name}` has {words}.")
    return "\n".join(f"- {line}" if number else f"{line}\n" for number, line in enumerate(lines))


def _choose(folder: PublishedFolder, facts: CardFacts) -> str:
    rows = choices(folder.models, facts.needed) if facts.needed else []
    if not rows:
        return ""
    table = [("memory", "file", "needs", "quality")]
    for each in rows:
        words = advice(each.file, folder.models)
        table.append((f"{each.memory} GB", f"`{each.file.type}`", byte_size(each.needed), words))
    last = rows[-1]
    end = f"More than {last.memory} GB: still {last.file.type}." if len(rows) > 1 else ""
    about = f"Needs: weights, a context of {facts.context:,} tokens in F16 and llama.cpp's buffers, all on one device."
    about += " 1 GB is left free."
    return "\n".join(["## What to choose", "", *markdown_text(table, "rlrl"), "", f"{about} {end}".strip()])


def _files(folder: PublishedFolder, facts: CardFacts) -> str:
    measured = any(each.measured for each in folder.models)
    head = ["file", "size", "bits per weight"]
    head += ["mean KL", "99.9 % KL", "same top token", "perplexity"] if measured else []
    rows: list[Sequence[str]] = [[*head, "advice"]]
    for file in folder.models:
        shards = f" ({file.shards} shards)" if file.shards > 1 else ""
        row = [f"[{_plain(file.name)}]({_link(file, facts)}){shards}", byte_size(file.size), fixed(file.bits, 2)]
        if measured:
            get = (file.measured.figures if file.measured else dict[str, float]()).get
            row += [significant(get("kl_divergence.mean"), 3), significant(get("kl_divergence.p99_9"), 3)]
            row += [percent(get("same_top")), fixed(get("perplexity"), 4)]
        rows.append([*row, advice(file, folder.models)])
    lines = ["## Files", "", *markdown_text(rows, "lrr" + "rrrr" * measured + "l")]
    if folder.results is not None:
        report = " More in [report.html](report.html)." if folder.has("report.html") else ""
        lines += ["", f"{described(folder.results)}{report}"]
    else:
        lines += ["", "How far they are from the original was not measured."]
    lines += [f"\nCannot be read: {_plain(each)}" for each in folder.unreadable]
    return "\n".join(lines)


def _prompt(folder: PublishedFolder, facts: CardFacts) -> str:
    metadata = folder.models[0].model.metadata
    try:
        text = rendered(metadata, PROMPT, now=NOW)
        note = ""
    except GgufToolsError:
        try:
            text = rendered(metadata, PROMPT[1:], now=NOW)
            note = "\n\nThe template takes no system message."
        except GgufToolsError as error:
            return f"## Prompt format\n\nNone: {_plain(str(error))}. The model continues a text."
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"## Prompt format\n\n{fence}\n{text.rstrip()}\n{fence}{note}"


def _run(folder: PublishedFolder, facts: CardFacts) -> str:
    file = usual(folder)
    repository = facts.repository
    projector = next(iter(folder.of_role("mmproj")), None)
    media = f" --mmproj {projector.name}" if projector else ""
    lines = ["## Run", ""]
    if repository:
        lines += _shell("llama.cpp", f"llama-server -hf {repository}:{file.type}")
        if file.shards == 1:
            lines += _shell("Ollama", f"ollama run hf.co/{repository}:{file.type}")
        lines += _shell("LM Studio", f"lms get https://huggingface.co/{repository}@{file.type.lower()}")
        chosen = file.name if file.shards == 1 else f'--include "{Path(file.name).parent.as_posix()}/*"'
        lines += _shell("One file", f"hf download {repository} {chosen} --local-dir .")
    else:
        lines += _shell("llama.cpp", f"llama-server -m {file.name}{media}")
    if file.shards == 1 and facts.has_modelfile:
        text_only = ", text only" if projector else ""  # of projectors in a Modelfile users report contrary things
        lines += _shell(f"Ollama, from this folder{text_only}", "ollama create MODEL -f Modelfile")
    if file.shards == 1 and projector is None and file.model.architecture in TRANSFORMERS:
        command = f'AutoModelForCausalLM.from_pretrained("{repository or "."}", gguf_file="{file.name}")'
        lines += _shell("transformers", command, "python")
    lines += [f"- {_plain(each)}" for each in facts.ollama.remarks]
    return "\n".join(lines).rstrip()


def _verify(folder: PublishedFolder, facts: CardFacts) -> str:
    lines = []
    if folder.has(SUMS):
        lines += _shell("Checksums", f"sha256sum --check {SUMS}")
    one = next((each for each in (usual(folder), *folder.models) if _manifest(folder, each)), None)
    if one is not None:
        command = f"gguftools reproduce {one.name} --source {_source(facts)}"
        lines += _shell("Made again from the original, and compared byte for byte", command)
        manifest = _manifest(folder, one)
        if manifest is not None and (given := _given_texts(manifest)):
            lines.append(f"Weights that GPTQ encoded are compared by their digests without `--gptq {given[0]}`.")
    return "\n".join(["## Verify", "", *lines]).rstrip() if lines else ""


def _source(facts: CardFacts) -> str:
    """Return what commands name as the original."""
    return f"hf://{facts.base_model}" if facts.base_model else "CHECKPOINT"


def _given_texts(manifest: Manifest) -> list[str]:
    """Return the names of the texts for GPTQ that the user gave."""
    own = {each.path.name for each in default_texts()}
    return [_plain(each.name) for each in manifest.texts if each.name not in own]


def _made(folder: PublishedFolder, facts: CardFacts) -> str:
    manifest = next(filter(None, (_manifest(folder, each) for each in folder.models)), None)
    matrix = next(iter(_matrix_texts(folder)), None)
    lines = []
    if manifest is not None:
        versions = ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in manifest.builder.items())
        lines.append(f"- Versions: {versions}.")
    if matrix is not None:
        lines.append(f"- Importance matrix: {matrix}")
    if manifest is not None and manifest.texts:
        lines.append(f"- GPTQ calibration on {', '.join(_plain(text.name) for text in manifest.texts)}.")
    for file in folder.models:
        shard = SHARD_NAME.fullmatch(Path(file.name).name)
        whole = Path(file.name) if shard is None else Path(file.name).with_name(shard["prefix"])
        text = recipe_path(whole).as_posix()
        if folder.has(text):
            lines.append(f"- `{file.name}`: recipe searched for this size, [{_plain(text)}]({text}).")
    if folder.has(SETTINGS):
        command = f"gguftools release {_source(facts)} --settings {SETTINGS} --output AGAIN"
        lines += ["- All of it again:", "", *_shell("", command)]
    if folder.has(RESULTS):
        lines.append(f"- All measured figures: [{RESULTS}]({RESULTS}).")
    return "\n".join(["## How they were made", "", *lines]).rstrip() if lines else ""


def _matrix_texts(folder: PublishedFolder) -> Iterator[str]:
    """Yield a sentence on the importance matrix, from its file or from what files made with it say."""
    for file in folder.of_role("imatrix"):
        metadata = file.model.metadata
        texts = ", ".join(map(str, metadata.get("imatrix.datasets", ()))) or "unnamed texts"
        windows, size = metadata.get("imatrix.chunk_count"), metadata.get("imatrix.chunk_size")
        yield f"`{file.name}`, {windows} windows of {size} tokens of {_plain(texts)}."
    for file in folder.models:
        name = file.model.metadata.get("quantize.imatrix.dataset")
        if isinstance(name, str):
            yield f"measured on {_plain(name)}."


def usual(folder: PublishedFolder) -> PublishedFile:
    """Return the file that commands name: Q4_K_M, else the middle one of those that the hub has a label for."""
    usual = next((each for each in folder.models if each.type == "Q4_K_M"), None)
    labelled = [each for each in folder.models if hub_label(each.name)] or folder.models
    return usual or labelled[len(labelled) // 2]


def _manifest(folder: PublishedFolder, file: PublishedFile) -> Manifest | None:
    path = manifest_path(folder.path / file.name)
    return read_manifest(path) if path.is_file() else None


def _link(file: PublishedFile, facts: CardFacts) -> str:
    if facts.repository is None:
        return file.name
    return f"https://huggingface.co/{facts.repository}/blob/main/{file.name}"


def _shell(title: str, command: str, language: str = "sh") -> list[str]:
    return [*([f"{title}:", ""] if title else []), f"```{language}", command, "```", ""]


def _longest_run(text: str) -> int:
    """Return the number of backquotes in the longest run of them."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _plain(text: str) -> str:
    """Return a text of a file without what Markdown means something by."""
    return "".join(f"\\{each}" if each in "\\`*_<>[]|#" else each for each in visible(text))
