"""One thin file a command: parse, call one function, render. The file's name is the command's."""

import importlib
import pkgutil
from types import ModuleType

ENTRY_POINTS = "gguftools.commands"  # by which other packages bring commands


def load(called: str | None = None) -> dict[str, ModuleType]:
    """The modules of the commands by name, each with a function of that name, and EXAMPLES; its docstring is help.

    called: the command that is asked for, if that is known: where it is one of ours, other packages are not looked at.
    """
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}") for name in names}
    if called not in modules:
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS):
            if entry.name in modules:
                raise ImportError(f"{entry.value} brings a command {entry.name}, which there is already")
            modules[entry.name] = entry.load()
    return modules
