"""Fill the generated parts of the pages: python docs/generate.py [--check].

A part stands between the comments `begin NAME: WORDS` and `end`: NAME is a function of this file, WORDS are its
arguments.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import typer.main

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

import archs.hparams.file_keys  # noqa: E402
import archs.registry  # noqa: E402
import archs.schema  # noqa: E402
import gguftools  # noqa: E402
from gguftools.__main__ import build_app  # noqa: E402
from gguftools.console.calls import arities  # noqa: E402
from gguftools.console.elsewhere import FIRST, LAST, PROGRAMS, meaning  # noqa: E402
from gguftools.console.usage import ALIASES, APART, NEEDS, flag  # noqa: E402
from gguftools.inspection import catalogue  # noqa: E402
from quants import Format  # noqa: E402
from quants.dialects import readings  # noqa: E402
from quants.tensor import Tensor  # noqa: E402
from runtime.model import Model as RunningModel  # noqa: E402
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


def commands() -> str:
    """Every command in a line, with its function, and a link to the page whose title names it or that shows it most."""
    pages = {page.name: page.read_text("utf-8") for page in sorted(FOLDER.glob("*.md")) if page.name != "llama-cpp.md"}
    rows = []
    for name, command in COMMANDS.items():
        word = re.compile(rf"\b{name}(?![-\w])")
        shown = {page: len(re.findall(rf"gguftools {word.pattern}", text)) for page, text in pages.items()}
        page = max(pages, key=lambda page: (bool(word.search(pages[page].partition("\n")[0])), shown[page]))
        function = name.replace("-", "_")
        link = f"[`{function}`](reference.md#{function})" if function in gguftools.__all__ else ""
        rows.append((f"[`{name}`]({page})", command.help.partition("\n\n")[0], link))
    return table(("command", "what it does", "in Python"), rows)


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
        whose = "all" if len(having) == len(COMMANDS) else ", ".join(having) or "in front of the command"
        spellings = ", ".join(f"`{each}`" for each in (*first.opts, *first.secondary_opts))
        rows.append((spellings, "; ".join([text.rstrip("."), *details]), whose))
    return table(("option", "meaning", "commands"), rows)


def contradictions() -> str:
    rows = []
    for command, entries in APART.items():
        for one, others, why in entries:
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


def programs() -> str:
    rows = []
    for new in dict.fromkeys(PROGRAMS.values()):
        if olds := [old for old, meant in PROGRAMS.items() if meant == new and re.search("llama|gguf", old)]:
            rows.append((", ".join(f"`{old}`" for old in olds), f"`gguftools {new}`"))
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
    if old in own:
        return "the same"
    found = meaning(command, old, own)
    if found is None:
        raise LookupError(f"{command}: gguftools/console/elsewhere.py has no answer to {old}")
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
        if not each.wrapper
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
        f"{count['with_towers']} have encoders for images or sounds, those of {count['with_running_towers']} run; "
        f"{count['exported_with_towers']} classes become checkpoints with them again (`export --mmproj`).\n"
    )


def export_obstacles() -> str:
    """Architectures whose files don't become checkpoints, and why."""
    rows = [
        (each.name, each.hf_classes[0], each.export_obstacle)
        for each in gguftools.architectures()
        if each.export_obstacle and not (each.draft or each.wrapper)
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
    return table(("classes", "where the encoder's model type is", "towers", "that run", "back again"), rows)


def keys(*starts: str) -> str:
    """The schema's keys that begin with one of these: type, bounds, what they mean."""
    known = {name: key for name, key in archs.schema.KEYS.items() if name.startswith(starts)}
    rows = [(f"`{name}`", _type(key), _bounds(key), _absent(name), _meaning(key)) for name, key in known.items()]
    return table(("key", "type", "values", "absent", "what it says"), rows)


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
    least = "" if not key.least else "above 0" if key.least == archs.schema.TINY else f"{key.least} or more"
    return ", ".join(filter(None, (least, "one a layer" if key.per_layer else "", "may be ∞" if key.infinite else "")))


def _meaning(key: archs.schema.Key) -> str:
    return f"{key.meaning} (not read by the runtime here)" if key.unread else key.meaning


def added_keys() -> str:
    """Keys that llama.cpp's converter does not write."""
    added = {name: key for name, key in archs.schema.KEYS.items() if key.added}
    rows = [(f"`{name}`", _type(key), key.added, key.meaning) for name, key in added.items()]
    return table(("key", "type", "written when", "meaning"), rows)


def reference() -> str:
    """Every public name with its signature and its docstring, then the objects that the functions return."""
    things = {name: getattr(gguftools, name) for name in gguftools.__all__ if not name.startswith("__")}
    functions = [thing for thing in things.values() if not isinstance(thing, type)]
    waiting = [each for thing in functions for each in _named(thing, thing.__annotations__["return"])]
    results: dict[str, type] = {}
    while waiting:
        each = waiting.pop()
        if each.__name__ not in results:
            results[each.__name__] = each
            inner = dataclasses.fields(each) if dataclasses.is_dataclass(each) else ()
            waiting += [found for field in inner for found in _named(each, field.type)]
    parts = [text for name, thing in things.items() for text in _described(name, thing, f"## {name}")]
    results |= {"Tensor": Tensor, "Tokenizer": Tokenizer, "runtime.model.Model": RunningModel}
    new = {name: thing for name, thing in sorted(results.items()) if name not in things}
    parts += ["# What is returned\n", *(text for each in new.items() for text in _described(*each, f"## {each[0]}"))]
    return "\n".join(parts)


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


def _described(name: str, thing: Any, heading: str) -> Iterator[str]:
    yield f"{heading}\n"
    if callable(thing):
        yield f"```text\n{_signature(name, thing)}\n```\n"
    yield _markdown(inspect.getdoc(thing) or "", thing) + "\n"
    if isinstance(thing, type):
        for member, value in vars(thing).items():
            method = inspect.isfunction(value) or isinstance(value, (property, cached_property))
            if method and not member.startswith("_") and inspect.getdoc(value):
                yield from _described(member, value, f"### {thing.__name__}.{member}")


def _markdown(text: str, thing: Any) -> str:
    """A docstring with an item for each parameter that it explains; indented lines stay the code that they are."""
    names = "|".join(inspect.signature(thing).parameters) if callable(thing) else ""
    if names:
        text = re.sub(rf"(?:(?<=[.;])[ \n]+|\n+)({names}): ", r"\n- `\1`: ", text).replace("\n- ", "\n\n- ", 1)
    text = re.sub(r"(?:(?<=[.;])[ \n]+|\n+)(Raises |Returns )", r"\n\n\1", text)
    plain = r"^    .*$|`[^`]*`|([<*_])"
    return re.sub(plain, lambda match: f"\\{match[1]}" if match[1] else match[0], text, flags=re.MULTILINE)


def _signature(name: str, thing: Any) -> str:
    """On one line where that fits, else a parameter a line."""
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return name
    written = _annotations(thing)
    given = signature.parameters.values()
    parameters = [one.replace(annotation=written.get(one.name, one.annotation)) for one in given]
    plain = isinstance(thing, type) and not dataclasses.is_dataclass(thing)
    result = inspect.Signature.empty if plain else written.get("return", signature.return_annotation)
    signature = signature.replace(parameters=parameters, return_annotation=result)
    line = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{name}{signature}")
    if len(line) <= 110:
        return line
    inner, _, result = line.removeprefix(f"{name}(").rpartition(")")
    parts = re.split(r", (?=(?:\*|\w+\s*[:=]|\*$))", inner)
    return "\n    ".join([f"{name}(", *(f"{part}," for part in parts)]) + f"\n){result}"


def _annotations(thing: Any) -> dict[str, str]:
    """The annotations of a function's parameters, or of a class's fields and of its __init__, as they are written."""
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    except OSError:  # made by dataclasses
        return {}
    nodes = tree.body if isinstance(tree, ast.ClassDef) else [tree]
    found = {each.target.id: each.annotation for each in nodes if isinstance(each, ast.AnnAssign)}
    for each in nodes:
        if isinstance(each, ast.FunctionDef) and each.name in (tree.name, "__init__"):
            arguments = each.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
            found |= {each.arg: each.annotation for each in every if each is not None}
            found["return"] = each.returns
    return {name: ast.unparse(each).strip("'") for name, each in found.items() if each is not None}


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
    "commands": commands,
    "contradictions": contradictions,
    "coverage": coverage,
    "export-obstacles": export_obstacles,
    "dialects": dialects,
    "flags": flags,
    "formats": formats,
    "keys": keys,
    "older-spellings": older_spellings,
    "options": options,
    "programs": programs,
    "reference": reference,
    "rooms": rooms,
    "towers": encoders,
}

if __name__ == "__main__":
    for page in sorted(FOLDER.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) == text:
            continue
        if "--check" in sys.argv:
            sys.exit(f"docs/{page.name} is stale")
        page.write_text(new, encoding="utf-8")
