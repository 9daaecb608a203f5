"""Define each command in a thin module of its name: parse, call one function, render."""

import importlib
import pkgutil
from types import ModuleType

ENTRY_POINTS = "gguftools.commands"  # group of entry points by which other packages add commands


def load(called: str | None = None) -> dict[str, ModuleType]:
    """Return the modules by command; each has a function of that name, whose docstring is the help text, and EXAMPLES.

    called: the requested command, if it is known; if it is one of ours, other packages are not searched.
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
