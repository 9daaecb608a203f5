"""Write all that is generated in the docs: python docs/generate.py [--no-run | --check] [PAGE.md …].

- A part of a page stands between the comments `begin NAME: WORDS` and `end`: NAME is a function of this file, WORDS are
  its arguments.
- The output under each command of a page is what the command prints (docs/sessions.py).
- The folders docs/commands and docs/api, and their lists in mkdocs.yml, follow from the commands and the public names.
- The pictures are drawn (docs/figures.py) or are of a terminal in which commands run.

`--no-run` leaves outputs and pictures as they are. `--check` says what is stale and runs no command: tests/test_docs.py
compares the outputs. With names of pages commands are run for these alone, and pictures are left as they are.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

import figures  # noqa: E402
import sessions  # noqa: E402

import archs.hparams.file_keys  # noqa: E402
import archs.registry  # noqa: E402
import archs.schema  # noqa: E402
import gguftools  # noqa: E402
from archs.diffusion.detection import all_families  # noqa: E402
from archs.diffusion.readers import CLASSES, readers_of  # noqa: E402
from archs.diffusion.spec import READERS  # noqa: E402
from benchmarks.device import card_table  # noqa: E402
from gguftools.__main__ import build_app  # noqa: E402
from gguftools.cli.calls import arities  # noqa: E402
from gguftools.cli.elsewhere import FIRST, LAST, PROGRAMS, meaning  # noqa: E402
from gguftools.cli.exclusions import EXCLUSIONS, NEEDS, exclusions, flag  # noqa: E402
from gguftools.cli.help import by_group, by_panel, shown_spellings  # noqa: E402
from gguftools.cli.options import MODEL_SPELLINGS  # noqa: E402
from gguftools.cli.usage import ALIASES  # noqa: E402
from gguftools.inspection import catalogue  # noqa: E402
from quants import Format  # noqa: E402
from quants.dialects import readings  # noqa: E402
from quants.tensor import Tensor  # noqa: E402
from runtime.tokenizer import Tokenizer  # noqa: E402

OURS = ("gguftools.", "archs.", "quants.", "runtime.")
PART = re.compile(r"(<!-- begin ([\w-]+)(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)
PROGRAM: Any = typer.main.get_command(build_app())
COMMANDS: Mapping[str, Any] = PROGRAM.commands


def filled(page: str) -> str:
    """The text of a page with its generated parts as they should be."""
    return PART.sub(lambda part: part[1] + PARTS[part[2]](*(part[3] or "").split()) + part[4], page)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in (columns, *rows)]
    return lines[0] + "|---" * len(columns) + "|\n" + "".join(lines[1:])


GUIDES = {  # the page that explains a command
    "architectures": "architectures.md",
    "attest": "provenance.md",
    "audit": "inspecting.md",
    "chat": "generate.md",
    "chat-template": "generate.md",
    "check": "check.md",
    "convert": "convert.md",
    "convert-endian": "files.md",
    "demo": "tutorial.md",
    "diff": "inspecting.md",
    "divergence": "divergence.md",
    "draft-check": "draft-models.md",
    "embed": "embeddings.md",
    "evaluate": "evaluate.md",
    "export": "export.md",
    "fit": "fit.md",
    "card": "release.md",
    "fetch": "hub.md",
    "release": "release.md",
    "formats": "formats.md",
    "generate": "generate.md",
    "gpu-split": "powerinfer.md",
    "graft": "graft.md",
    "graph": "graph.md",
    "hash": "files.md",
    "imatrix": "quantize.md",
    "imatrix-info": "quantize.md",
    "merge": "files.md",
    "patch": "graft.md",
    "perplexity": "perplexity.md",
    "quantize": "quantize.md",
    "report": "report.md",
    "reproduce": "provenance.md",
    "set-metadata": "metadata.md",
    "show": "metadata.md",
    "split": "files.md",
    "tokenize": "generate.md",
    "upload": "hub.md",
    "validate": "inspecting.md",
}


def escaped(text: str) -> str:
    """A help text as Markdown shows it as it stands; what is in backticks is left alone."""
    plain = re.sub(r"`[^`]*`|([*_])", lambda match: f"\\{match[1]}" if match[1] else match[0], text)
    return re.sub(r"`[^`]*`|(<)", lambda match: "&lt;" if match[1] else match[0], plain)


def commands() -> str:
    """Every command in a line, with links to its page and to the guide that explains it, by groups."""
    rows, groups = dict[str, tuple[str, str, str]](), by_group(COMMANDS)
    for name, command in COMMANDS.items():
        guide = f"[{_title(GUIDES[name])}]({GUIDES[name]})" if name in GUIDES else ""
        rows[name] = (f"[`{name}`](commands/{name}.md)", escaped(command.help.partition("\n\n")[0]), guide)
    columns = ("command", "what it does", "guide")
    return "\n".join(
        f"### {group}\n\n{table(columns, [rows[name] for name in names])}" for group, names in groups.items()
    )


def options() -> str:
    """Of every option its spellings, its meaning with what commands add to it, and the commands."""
    owners: dict[str, dict[str, Any]] = {option.opts[0]: {"": option} for option in PROGRAM.params}
    for name, command in COMMANDS.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                owners.setdefault(option.opts[0], {})[name] = option
    rows = []
    for _, having in sorted(owners.items()):
        first = next(iter(having.values()))
        meanings = {name: option.help.rstrip(".").partition(": ") for name, option in having.items()}
        details = [f"{name}: {detail}" for name, (_, _, detail) in meanings.items() if detail]
        text = next(iter(meanings.values()))[0]
        if len(having) == 1 and details:
            text, details = first.help, []
        whose = "all" if len(having) == len(COMMANDS) else ", ".join(having) or "before the command"
        spellings = ", ".join(f"`{each}`" for each in sorted(shown_spellings(first), key=len, reverse=True))
        rows.append((spellings, escaped("; ".join([text.rstrip("."), *details])), whose))
    return table(("option", "meaning", "commands"), rows)


def contradictions() -> str:
    rows = []
    for command in EXCLUSIONS:
        for one, others, why in exclusions(COMMANDS[command]) if command else EXCLUSIONS[command]:
            names = ", ".join(f"`{flag(each)}`" for each in others.removeprefix("*").split())
            whom = f"all but {names}" if others.startswith("*") else names
            rows.append((f"`{command}`" if command else "all", f"`{flag(one)}`", whom, why))
    for command, needed in NEEDS.items():
        for one, other in needed.items():
            rows.append((f"`{command}`", f"`{flag(one)}`", f"no `{flag(other)}`", f"it needs `{flag(other)}`"))
    return table(("command", "option", "not with", "because"), rows)


def older_spellings() -> str:
    flags = [(command, old, new) for command, known in ALIASES.items() for old, new in known.items()]
    return "; ".join(f"`{command} {old}` for `{new}`" for command, old, new in flags) + ".\n"


SCRIPTS = {  # how llama.cpp spells its scripts; names that its present versions do not have are left out
    "convert-hf-to-gguf": "convert_hf_to_gguf.py",
    "convert-lora-to-gguf": "convert_lora_to_gguf.py",
    "gguf-hash": "gguf_hash.py",
    "gguf-split": "",
    "llama-run": "",
}


def programs() -> str:
    rows = []
    for new in dict.fromkeys(PROGRAMS.values()):
        olds = [old for old, meant in PROGRAMS.items() if meant == new and re.search("llama|gguf", old)]
        if names := [name for old in olds if (name := SCRIPTS.get(old, old))]:
            rows.append((", ".join(f"`{name}`" for name in names), f"`gguftools {new}`"))
    return table(("its program or script", "here"), rows)


def flags(command: str, *theirs: str) -> str:
    """What the options of a program of llama.cpp are called in a command; those that mean the same in one row."""
    answers = {old: _here(command, old) for old in theirs}
    rows = [
        (", ".join(f"`{old}`" for old in theirs if answers[old] == answer), answer)
        for answer in dict.fromkeys(answers.values())
    ]
    return table(("its option", "here"), rows)


def _here(command: str, old: str) -> str:
    own = arities(COMMANDS[command])
    if old in own or (old in MODEL_SPELLINGS and COMMANDS[command].model_argument):
        return "the same"
    found = meaning(command, old, own)
    if found is None:
        raise LookupError(f"{command}: gguftools/cli/elsewhere.py has no answer to {old}")
    if found.becomes == "text":
        return found.text
    words = {FIRST: "the first argument", LAST: "the last argument"}
    return f"leave it out: {found.text}" if found.becomes == "nothing" else words.get(found.text, f"`{found.text}`")


def formats() -> str:
    rows = [
        (f"`{each.name}`", f"{each.bits_per_weight:.4g}", f"{each.block}", f"{each.block_bytes}", each.importance)
        for each in sorted(gguftools.formats(), key=lambda each: (each.bits_per_weight, each.name))
    ]
    return table(("format", "bits a weight", "values a block", "bytes a block", "importance weights"), rows)


def dialects() -> str:
    rows = [
        (
            f"`{form.name}`",
            form.dialect,
            f"{form.ggml_type}",
            f"{form.bits_per_weight:.4g}",
            f"{form.block_size}",
            f"{form.rows_together}",
            f"{form.head_bytes or ''}",
            _kept_in(form),
        )
        for form in (each.format for each in readings().values())
    ]
    columns = ("format", "of", "type", "bits a weight", "values a block", "rows together", "before a row", "kept in")
    return table(columns, rows)


def _kept_in(form: Format) -> str:
    if form.tail_bytes:
        return "`Q2_0`, where its scale is a half"
    return f"`{form.same_values}`" if form.same_values else "" if form.has_codec else "not decoded"


def architectures() -> str:
    rows = [
        (each.name, ", ".join(each.hf_classes), _words(each), "yes" if each.exports else "no")
        for each in gguftools.architectures()
        if not (each.wrapper or each.image)
    ]
    return table(("GGUF name", "Hugging Face classes", "vocabularies", "back again"), rows)


def _words(each: catalogue.ArchitectureInfo) -> str:
    return ", ".join(each.vocabularies) or "the target's"


def coverage() -> str:
    """How many classes there are of what."""
    count = catalogue.coverage()
    named = ", ".join(catalogue.wrappers())
    return (
        f"{count['classes']} classes are converted and run; {count['wrappers']} more wrap a text model that their "
        f"config.json names, which is converted if it is one of these ({named}); {count['drafts']} are drafts. "
        f"{count['exported']} become checkpoints again. "
        f"{count['with_encoders']} have encoders for images or audio, those of {count['with_running_encoders']} run; "
        f"{count['exported_with_encoders']} classes are exported with them (`export --mmproj`).\n"
    )


def export_obstacles() -> str:
    """Architectures whose files don't become checkpoints, and why."""
    rows = [
        (each.name, each.hf_classes[0], each.export_obstacle)
        for each in gguftools.architectures()
        if each.export_obstacle and not (each.draft or each.wrapper or each.image)
    ]
    return table(("GGUF name", "first class", "why its files become no checkpoints"), rows)


def encoders() -> str:
    """Classes whose encoders are converted."""
    rows = [
        (
            ", ".join(each.hf_classes),
            ", ".join(each.model_types),
            ", ".join(each.parts),
            ", ".join(each.running),
            "yes" if each.exporting else "no",
        )
        for each in catalogue.encoders()
    ]
    return table(("classes", "where the encoder's model type is", "encoders", "that run", "back again"), rows)


def image_models() -> str:
    """Image and video models: tag, and the programs that load their files."""
    rows = [
        (
            family.title,
            family.tag,
            *("yes" if reader in readers_of(family) else "no" for reader in ("comfyui", "sdcpp")),
            CLASSES[family.name] if "diffusers" in readers_of(family) else "no",
        )
        for family in sorted(all_families(), key=lambda family: (family.tag, family.title))
    ]
    return table(("model", "tag", *READERS.values()), rows)


def cards() -> str:
    """What graphics cards measure by the plan."""
    return table(*card_table())


def keys(*starts: str) -> str:
    """The schema's keys that begin with one of these: type, bounds, what they mean."""
    known = {name: key for name, key in archs.schema.KEYS.items() if name.startswith(starts)}
    rows = [
        (f"`{name}`", "; ".join(filter(None, (_type(key), _bounds(key)))), _absent(name), _meaning(key))
        for name, key in known.items()
    ]
    return table(("key", "type, values", "absent", "meaning"), rows)


def _absent(name: str) -> str:
    """What a file means that lacks the key, by the rule of all architectures."""
    return _rule(archs.hparams.file_keys.COMMON.get(name.removeprefix("NAME.")))


def _rule(rule: Any) -> str:
    if isinstance(rule, archs.hparams.file_keys.Derived):
        return rule.formula or rule.when
    if formula := archs.hparams.file_keys.formula_of(rule):
        return f"`{formula}`"
    if rule is None or (hasattr(rule, "__len__") and not len(rule)):
        return ""
    return str(rule).lower() if isinstance(rule, bool) else f"{rule:g}" if isinstance(rule, float) else str(rule)


def absent_keys() -> str:
    """What architectures mean by keys that a file lacks, where that is not the rule of all."""
    found: dict[tuple[str, str], list[str]] = {}
    for architecture in (*archs.registry.architectures(), *archs.registry.drafts()):
        for key, rule in architecture.absent.items():
            meant = _rule(rule)
            if meant and architecture.name not in (names := found.setdefault((key, meant), [])):
                names.append(architecture.name)
    rows = [(f"`NAME.{key}`", meant, ", ".join(names)) for (key, meant), names in sorted(found.items())]
    return table(("key", "absent", "architectures"), rows)


def _type(key: archs.schema.Key) -> str:
    return f"{key.gguf_type}{'' if key.array or not key.per_layer else ', or an array'}"


def _bounds(key: archs.schema.Key) -> str:
    if values := key.choices or key.known:
        return ", ".join(map(str, values))
    lowest = "" if not key.minimum else "above 0" if key.minimum == archs.schema.TINY else f"{key.minimum} or more"
    return ", ".join(filter(None, (lowest, "one a layer" if key.per_layer else "", "may be ∞" if key.infinite else "")))


def _meaning(key: archs.schema.Key) -> str:
    return f"{key.meaning} (not read by the runtime here)" if key.unread else key.meaning


def added_keys() -> str:
    """Keys that llama.cpp's converter does not write."""
    added = {name: key for name, key in archs.schema.KEYS.items() if key.added}
    rows = [(f"`{name}`", _type(key), key.added, key.meaning) for name, key in added.items()]
    return table(("key", "type", "written when", "meaning"), rows)


SUBJECTS = {  # page in docs/api: (title, names); a public name that none of them has goes to the last
    "model": ("Models", "open Model load RunningModel example identify"),
    "make": ("Make files", "convert quantize demo frontier export split merge convert_endian reproduce gpu_split"),
    "inspect": (
        "Inspect",
        "show architectures formats diff weight_errors validate audit check hash imatrix_info merge_imatrices graph"
        " node_values compare_values schema",
    ),
    "edit": (
        "Edit",
        "set_metadata Set SetItem SetType SetChatTemplate SetSpecialToken Rename Remove graft patch make_patch"
        " apply_patch",
    ),
    "measure": ("Measure", "perplexity divergence imatrix evaluate draft_check report"),
    "run": ("Run", "generate chat tokenize chat_template compare_chat_templates embed fit FitOptions"),
    "publish": ("Publish", "attest verify_attestation"),
    "objects": ("Options, tensors, errors", "GenerateOptions GgufToolsError"),
}
OBJECTS = (Tensor, Tokenizer)  # what users meet without having asked for it by name


def api_names() -> dict[str, list[str]]:
    """The public names of each page of docs/api."""
    public = [name for name in gguftools.__all__ if not name.startswith("__")]
    found = {page: [name for name in names.split() if name in public] for page, (_, names) in SUBJECTS.items()}
    listed = {name for names in found.values() for name in names}
    found[list(SUBJECTS)[-1]] += [name for name in public if name not in listed]
    return {page: names for page, names in found.items() if names}


def api_page_of(name: str) -> str:
    return next(page for page, names in api_names().items() if name in names)


def api_pages() -> dict[str, str]:
    """Pages of docs/api: of each name its directive, then the objects that its functions return."""
    pages, seen = {}, set(gguftools.__all__)
    for page, names in api_names().items():
        things = [getattr(gguftools, name) for name in names]
        results: list[str] = []
        for each in (found for thing in things if not isinstance(thing, type) for found in _returned(thing)):
            if each.__name__ not in seen and each not in OBJECTS:
                seen.add(each.__name__)
                results.append(f"{each.__module__}.{each.__qualname__}")
        directives = [f"::: gguftools.{name}\n" for name in names] + [f"::: {path}\n" for path in results]
        if page == list(SUBJECTS)[-1]:
            full = "    options:\n      show_root_full_path: true\n"
            directives += [f"::: {each.__module__}.{each.__qualname__}\n{full}" for each in OBJECTS]
        pages[f"api/{page}.md"] = "\n".join((f"# {SUBJECTS[page][0]}\n", *directives))
    rows = [
        (f"[`{name}`]({page}.md#gguftools.{name})", _first_sentence(getattr(gguftools, name)))
        for page, names in api_names().items()
        for name in names
    ]
    intro = (
        "# Python API\n\nThese are all public names of the package `gguftools`. [Ten short scripts](../python.md) show "
        "how they are used. Names of other modules may change.\n\n"
    )
    pages["api/index.md"] = intro + table(("name", "what it does"), rows)
    return pages


def _first_sentence(thing: Any) -> str:
    return escaped((inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " "))


def _returned(function: Any) -> Iterator[type]:
    """The classes that a function's return annotation names, and those that their fields do."""
    waiting, seen = list(_named(function, function.__annotations__["return"])), set()
    while waiting:
        each = waiting.pop(0)
        if each in seen:
            continue
        seen.add(each)
        yield each
        inner = dataclasses.fields(each) if dataclasses.is_dataclass(each) else ()
        waiting += [found for field in inner for found in _named(each, field.type)]


def _named(thing: Any, annotation: Any) -> Iterator[type]:
    """The classes that an annotation in a room of gguftools names, wherever they are."""
    if not thing.__module__.startswith("gguftools."):
        return
    ours = [module for name, module in sys.modules.items() if name.startswith(OURS)]
    modules = [sys.modules[thing.__module__], *ours]
    for name in re.findall(r"[A-Z]\w+", str(annotation)):
        found = next((value for module in modules if isinstance(value := vars(module).get(name), type)), None)
        if found is not None and found.__module__.startswith(OURS):
            yield found


def command_pages() -> dict[str, str]:
    """A page for each command in docs/commands: what it does, how it is called, examples, arguments, options."""
    return {f"commands/{name}.md": _command_page(name, command) for name, command in COMMANDS.items()}


def _command_page(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    function = name.replace("-", "_")
    links = [f"Guide: [{_title(GUIDES[name])}](../{GUIDES[name]})"] if name in GUIDES else []
    if function in gguftools.__all__:
        links.append(f"Python: [`gguftools.{function}`](../api/{api_page_of(function)}.md#gguftools.{function})")
    usage = " ".join(("gguftools", name, "[OPTIONS]", *map(_argument, arguments)))
    parts = [f"# gguftools {name}\n", f"{escaped(command.help)}\n", f"```text\n{usage}\n```\n"]
    parts += [" · ".join(links) + "\n"] if links else []
    parts += [f"## Examples\n\n```sh\n{command.epilog}\n```\n"] if command.epilog else []
    if arguments:
        rows = [(f"`{_argument(each).strip('[]')}`", escaped(each.help or "")) for each in arguments]
        parts.append("## Arguments\n\n" + table(("argument", "meaning"), rows))
    for panel, options_of_it in by_panel(command, shown).items():
        parts.append(f"## {panel}\n\n" + table(("option", "meaning"), map(_option, options_of_it)))
    return "\n".join(parts)


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper().replace("_", "-")
    name += "..." if argument.nargs == -1 and not name.endswith(("…", "...")) else ""
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> tuple[str, str]:
    spelled = ", ".join(f"`{each}`" for each in shown_spellings(option))
    value = "" if option.is_flag else f" `{option.metavar or 'VALUE'}`"
    remarks = ["required"] if option.required else ["repeatable"] if option.multiple else []
    if option.default and not (option.is_flag or callable(option.default)):
        remarks.append(f"default: {option.default}")
    remark = f"({', '.join(remarks)})" if remarks else ""
    return spelled + value, " ".join(filter(None, (escaped(option.help or ""), remark)))


def _title(page: str) -> str:
    return (FOLDER / page).read_text("utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")


def navigation(text: str) -> str:
    """The text of mkdocs.yml with the pages of docs/commands and docs/api in it."""
    commands_there = [f"      - {name}: commands/{name}.md\n" for name in sorted(COMMANDS)]
    api = [f"      - {SUBJECTS[page][0]}: api/{page}.md\n" for page in api_names()]
    api = [line.replace(f": {SUBJECTS['objects'][0]}", "") for line in api]
    for name, lines in (("commands", commands_there), ("api", api)):
        pattern = rf"(      # begin {name}\n).*?(      # end {name}\n)"
        text = re.sub(pattern, lambda part, lines=lines: part[1] + "".join(lines) + part[2], text, flags=re.DOTALL)
    return text


def kl_by_size() -> str:
    """The data of the figure: a row for each format."""
    found: dict[tuple[float, str], dict[str, str]] = {}
    for row in figures.rows():
        found.setdefault((float(row["bits_per_weight"]), row["format"]), {})[row["method"]] = row["kl_mean"]
    rows = [
        (name, f"{bits:.4g}", *(by_method.get(method, "") for method in figures.STYLES))
        for (bits, name), by_method in sorted(found.items())
    ]
    lines = table(("format", "bits per weight", *(label for label, _, _ in figures.STYLES.values())), rows)
    return lines.replace("|---|---|---|---|---|", "|---|---:|---:|---:|---:|")


def rooms() -> str:
    """The packages and their rooms from the bottom up, with what each imports."""
    from tests.test_layers import FILES, ROOMS, imported, room_of

    rows = []
    for room in (each for each in ROOMS if each in FILES):
        package = room.split(".")[0]
        targets = {room_of(name) for module in FILES if room_of(module) == room for name in imported(module)} - {room}
        below = [each for each in ROOMS if each in targets]
        shown = [each.partition(".")[2] or each if each.startswith(package) else each.split(".")[0] for each in below]
        purpose = ast.get_docstring(ast.parse(FILES[room].read_text("utf-8"))) or ""
        rows.append((f"`{room}`", purpose.partition("\n")[0], ", ".join(f"`{each}`" for each in dict.fromkeys(shown))))
    return table(("room", "what lives there", "imports"), rows)


PARTS: Mapping[str, Callable[..., str]] = {
    "absent-keys": absent_keys,
    "added-keys": added_keys,
    "architectures": architectures,
    "cards": cards,
    "commands": commands,
    "contradictions": contradictions,
    "coverage": coverage,
    "export-obstacles": export_obstacles,
    "dialects": dialects,
    "flags": flags,
    "formats": formats,
    "image-models": image_models,
    "keys": keys,
    "kl-by-size": kl_by_size,
    "older-spellings": older_spellings,
    "options": options,
    "programs": programs,
    "rooms": rooms,
    "towers": encoders,
}

TERMINAL = (
    ("gguftools convert examples/austen-4m -o austen-bf16.gguf", ""),
    ("gguftools quantize austen-bf16.gguf Q8_0 Q4_K_M -o .", ""),
    (
        "gguftools divergence austen-bf16.gguf austen-Q8_0.gguf austen-Q4_K_M.gguf \\\n"
        "      -f examples/persuasion.txt --chunks 16",
        "all files",
    ),
    ("gguftools generate austen-Q4_K_M.gguf -p 'She was' --seed 7 -n 26", ""),
)


def stale_pictures() -> list[str]:
    """Pictures whose data, drawing or commands changed since they were made."""
    digests = {"kl-by-size.svg": figures.digest(), "terminal.svg": sessions.digest(TERMINAL)}
    paths = {name: FOLDER / name for name in digests}
    return [name for name, path in paths.items() if not path.exists() or digests[name] not in path.read_text("utf-8")]


def draw_pictures() -> None:
    figures.kl_by_size(FOLDER / "kl-by-size.svg")
    (FOLDER / "terminal.svg").write_text(sessions.picture(TERMINAL, "gguftools"), encoding="utf-8")


def texts(runs: bool, chosen: set[str]) -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    config = FOLDER.parent / "mkdocs.yml"
    yield config, navigation(config.read_text("utf-8"))
    for name, text in (command_pages() | api_pages()).items():
        yield FOLDER / name, text
    for page in (FOLDER.parent / "README.md", *sorted(FOLDER.glob("*.md"))):
        text = filled(page.read_text(encoding="utf-8"))
        shows_output = page.parent == FOLDER and page.name in (chosen or {page.name})
        yield page, sessions.filled(text) if runs and shows_output else text


def main() -> None:
    check, runs = "--check" in sys.argv, not {"--check", "--no-run"} & {*sys.argv}
    chosen = {name for name in sys.argv[1:] if name.endswith(".md")}
    stale = stale_pictures() if check else []
    known = set()
    for path, text in texts(runs, chosen):
        known.add(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in sorted({*FOLDER.glob("commands/*.md"), *FOLDER.glob("api/*.md")} - known):
        stale.append(path.name)
        if not check:
            path.unlink()
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}")
    if runs and not chosen:
        draw_pictures()


if __name__ == "__main__":
    main()
