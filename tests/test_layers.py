"""Who may import whom: packages and rooms in one order, no circle between modules, console output in gguftools alone.

Every import statement counts: those inside functions too, because what is imported late is still depended on, and those
under TYPE_CHECKING, because a module whose types come from above cannot be read without what is above.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import ROOT

PACKAGES = ("quants", "archs", "runtime", "gguftools")
# From the bottom up: a room imports from those above it in this list. A module is in the room of the longest such name.
ORDER = (
    "quants.errors quants.spelling quants.codes quants.format",
    "quants.formats",
    "quants.kernels",
    "quants.dialects",
    "quants",
    "archs archs.hparams archs.validation",
    "archs.vocab",
    "archs.prequantized",
    "archs.families",
    "archs.multimodal",
    "archs.registry archs.plans archs.validation.model_validators archs.plans.text archs.lora archs.plans.mmproj "
    "archs.plans.draft archs.validation.draft_validators "
    "archs.mtp",
    "archs.plans.export",
    "runtime.arrays runtime.kernels",
    "runtime.tokenizers",
    "runtime.sampling",
    "runtime runtime.products runtime.mixers",
    "runtime.graph",
    "runtime.evaluation runtime.decoder runtime.model runtime.mtp runtime.layerwise "
    "runtime.evaluation.joint_decision runtime.evaluation.option_scores "
    "runtime.encoder_decoder runtime.audio_codec runtime.node_values runtime.evaluation.pooling runtime.prefill "
    "runtime.prefix_cache "
    "runtime.evaluation.perplexity runtime.evaluation.divergence runtime.evaluation.choices "
    "runtime.evaluation.stored_states "
    "runtime.evaluation.statistics runtime.evaluation.stored_logits runtime.evaluation.windows",
    "runtime.device",
    "runtime.multimodal",
    "runtime.speculation",
    "runtime.generation runtime.batched_generation runtime.beam_search",
    "gguftools.io.stores",
    "gguftools.io",
    "gguftools.io.gguf",
    "gguftools.io.checkpoint",
    "gguftools.metadata",
    "gguftools.writing",
    "gguftools.quantization",
    "gguftools.models.devices",
    "gguftools.models.left_out gguftools.models.sources gguftools.models.generation gguftools.models.chat",
    "gguftools.models",
    "gguftools.inspection",
    "gguftools.measurement",
    "gguftools.inspection.original",
    "gguftools.calibration",
    "gguftools.provenance",
    "gguftools.conversion",
    "gguftools.publish",
    "gguftools.lab",
    "gguftools.publish.release",
    "gguftools.cli",
    "gguftools.cli.commands",
    "gguftools",
)
ROOMS = {room: rank for rank, line in enumerate(ORDER) for room in line.split()}
FILES = {  # module: its file
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


@cache
def imported(module: str) -> list[str]:
    """The modules of ours that one imports, at any depth of its code."""
    path = FILES[module]
    here = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = here[: len(here) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            full = [f"{base}.{alias.name}" for alias in node.names]
            names += [name if name in FILES else base for name in full]
    return [name for name in dict.fromkeys(names) if name in FILES and name != module]


def room_of(module: str) -> str:
    while module not in ROOMS:
        module = module.rpartition(".")[0]
    return module


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down_only(module: str):
    assert not [name for name in imported(module) if ROOMS[room_of(name)] > ROOMS[room_of(module)]]


LAB = "gguftools.lab."


def lab_package(module: str) -> str:
    """The package of an expert feature that a module is in; "" for other modules."""
    return LAB + module.removeprefix(LAB).split(".")[0] if module.startswith(LAB) else ""


@pytest.mark.parametrize("module", FILES)
def test_expert_features_are_imported_by_their_package(module: str):
    """Outside `gguftools.lab.X` nothing imports a module in it: what is public is in its `__init__`."""
    package = lab_package(module)
    inner = [name for name in imported(module) if lab_package(name) not in ("", name, package)]
    assert inner == []


@pytest.mark.parametrize("folder", ["docs", "examples", "tests/fuzz", "tests/verify"])
def test_scripts_import_expert_features_by_their_package(folder: str):
    """Tests of gguftools may look inside, and so do benchmarks of a part."""
    inner = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                inner += [f"{path.name}: {name}" for name in [str(node.module)] if lab_package(name) not in ("", name)]
    assert inner == []


def test_there_are_no_circles():
    try:
        TopologicalSorter({module: imported(module) for module in FILES}).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


@pytest.mark.parametrize("path", FILES.values(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_commands_print(path: Path):
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith("gguftools/cli/commands/") or relative in {"gguftools/cli/ui.py", "gguftools/__main__.py"}:
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id in {"print", "input"}]


def test_there_are_files_to_check():
    assert {module.split(".")[0] for module in FILES} == set(PACKAGES)


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples", "tests/fuzz", "tests/verify"])
def test_what_scripts_import_is_there(folder: str):
    """Of ours; the scripts themselves may need torch, or run for hours."""
    absent = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] in PACKAGES:
                module = importlib.import_module(str(node.module))
                names = [alias.name for alias in node.names]
                absent += [f"{path.name}: {node.module}.{name}" for name in names if not _has(module, name)]
    assert absent == []


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name) or importlib.util.find_spec(f"{module.__name__}.{name}") is not None
