"""Assembly that LLVM makes of our operations for another processor than the one they are compiled on.

    python -m tests.runtime.kernels.cross_compile TRIPLE CPU MODULE.OPERATION …

As JSON: name → its assembly. Everything that asks which processor is compiled for is told that it is that one, so that
nothing of the processor at hand gets into LLVM's language; numba then translates that for the processor at hand, which
is not looked at, and LLVM for the other. For a process of its own: what is compiled in it must not run.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from numba.core import config
from numba.core.ccallback import CFunc
from numba.core.codegen import CPUCodegen
from numba.core.sigutils import normalize_signature

from runtime.kernels import thread_team

SIGNATURE = normalize_signature("void(int64, int64, int64)")


def assembly(function: Callable[..., Any], triple: str, cpu: str) -> str:
    made = CFunc(function, SIGNATURE, locals={}, options={"nopython": True, "error_model": "numpy", "_nrt": False})
    made.compile()
    language = made.inspect_llvm()
    assert "llvm.x86" not in language
    assert " asm " not in language
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    language = re.sub(r'target triple = ".*"', f'target triple = "{triple}"', language)
    language = re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', language)
    module = llvm.parse_assembly(language)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        module, llvm.create_pass_builder(machine, options)
    )
    return str(machine.emit_assembly(module))


def main(triple: str, cpu: str, names: list[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    config.CPU_FEATURES = ""  # of x86
    CPUCodegen.magic_tuple = lambda self: (triple, cpu, "")
    thread_team.operation = lambda function: function
    found = {}
    for name in names:
        module, _, function = name.rpartition(".")
        found[name] = assembly(getattr(importlib.import_module(module), function), triple, cpu)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
