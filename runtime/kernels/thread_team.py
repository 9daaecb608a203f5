"""Lists of small operations, run by a few threads in step, without Python in between.

An operation is a row of int64: the address of a compiled function, whether all threads wait for one another after it,
and the function's arguments (addresses of arrays, widths). Every thread runs the whole list; functions share their work
by the number of the thread. A thousand operations take microseconds in addition to their work, where calls from Python
take milliseconds.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.kernels.jit import inlined, kernel, parts_changed
from quants.kernels.lanes import INDEX
from quants.kernels.numba_internals import (
    CFunc,
    cgutils,
    intrinsic,
    ir,
    make_array,
    normalize_signature,
    nt,
    populate_array,
    stamp_cache,
)

FIELDS = 32  # of an operation: function, wait, and arguments from 2 on
FUNCTION, WAIT = 0, 1
SPINS = 1 << 7  # polls before the processor is yielded: some 3 microseconds
LINGER = 1 << 14  # polls for another run before a helper exits: about a millisecond
APART = 16  # int64s between the states of two threads, so that they don't share a cache line
GONE, WAITING, CALLED = 0, 1, 2  # states of a helper

_signature = normalize_signature("void(int64, int64, int64)")


def operation(function: Callable[..., Any]) -> Callable[[], int]:
    """Compile function(row, thread, threads) as an operation: a call compiles it, or loads it, and returns its address.

    row: the address of the operation's int64 (FIELDS,).
    """

    @functools.cache
    def compiled() -> Any:
        made = CFunc(function, _signature, locals={}, options={"nopython": True, "error_model": "numpy", "_nrt": False})
        made.enable_caching()
        stamp_cache(made, parts_changed(Path(__file__).parent))  # as in `quants.kernels.jit.kernel`
        made.compile()
        return made

    return lambda: int(compiled().address)


def operation_row(function: int, fields: dict[int, Any], wait: bool = False) -> NDArray[np.int64]:
    """Return an operation's row: arrays in fields become their addresses, and floats float64."""
    row = np.zeros(FIELDS, np.int64)
    row[:2] = function, wait
    for at, value in fields.items():
        if isinstance(value, float):
            row[at : at + 1].view(np.float64)[0] = value
        else:
            row[at] = value.ctypes.data if isinstance(value, np.ndarray) else value
    return row


@intrinsic
def array_at(typing: Any, address: Any, size: Any, dtype: Any) -> Any:
    """Return the array of `size` elements at an address, without a reference count."""
    result = nt.Array(dtype.dtype, 1, "C")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        array = make_array(result)(context, builder)
        itemsize = context.get_constant(nt.intp, context.get_abi_sizeof(context.get_data_type(result.dtype)))
        data = builder.inttoptr(args[0], context.get_data_type(result.dtype).as_pointer())
        populate_array(array, data=data, shape=[args[1]], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()

    return result(nt.int64, nt.int64, dtype), codegen


@intrinsic
def _call(typing: Any, rows: Any, at: Any, thread: Any, threads: Any) -> Any:
    """Run the operation in rows[at:]."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        row = builder.gep(data, [args[1]])
        function_type = ir.FunctionType(ir.VoidType(), [INDEX, INDEX, INDEX])
        function = builder.inttoptr(builder.load(row), function_type.as_pointer())
        builder.call(function, [builder.ptrtoint(row, INDEX), args[2], args[3]])
        return context.get_dummy_value()

    return nt.void(rows, nt.int64, nt.int64, nt.int64), codegen


@intrinsic
def _arrive(typing: Any, counter: Any) -> Any:
    """Add one to counter[0], after all writes of this thread."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.atomic_rmw("add", data, ir.Constant(INDEX, 1), "seq_cst")
        return context.get_dummy_value()

    return nt.void(counter), codegen


@intrinsic
def _look(typing: Any, array: Any, at: Any) -> Any:
    """Return array[at], before all later reads of this thread; tells the processor that this is a spin wait."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        if context.codegen().magic_tuple()[0].startswith("x86_64"):
            pause = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, pause, "llvm.x86.sse2.pause"), [])
        return builder.load_atomic(data, "seq_cst", 8)

    return nt.int64(array, nt.int64), codegen


@intrinsic
def _exchange(typing: Any, array: Any, at: Any, before: Any, after: Any) -> Any:
    """Write `after` into array[at] if it holds `before`; return whether it did."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        done = builder.cmpxchg(builder.gep(data, [args[1]]), args[2], args[3], "seq_cst")
        return builder.extract_value(done, 1)

    return nt.boolean(array, nt.int64, nt.int64, nt.int64), codegen


@intrinsic
def _let_others_run(typing: Any) -> Any:
    """Call the C library's sched_yield."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        function_type = ir.FunctionType(ir.IntType(32), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, "sched_yield"), [])

    return nt.int32(), codegen


@inlined
def _wait(counter, until):  # type: ignore[no-untyped-def]
    _arrive(counter)
    spins = 0
    while _look(counter, 0) < until:
        spins += 1
        if spins % SPINS == 0:
            _let_others_run()


@inlined
def _run(task, counter, thread, threads):  # type: ignore[no-untyped-def]
    waited = threads
    if threads > 1:
        _wait(counter, waited)
    count = task[1]
    rows = array_at(task[0], FIELDS * count, np.int64)
    for i in range(count):
        _call(rows, FIELDS * i, thread, threads)
        if threads > 1 and rows[FIELDS * i + 1]:
            waited += threads
            _wait(counter, waited)


@kernel
def run(task, counter, threads, states):  # type: ignore[no-untyped-def]
    """Run operations as thread 0 of `threads`, and wait until the others have finished, too.

    task: int64 (2,), the address of the operations' rows and their number. counter: int64 (1,), zero before the first
    arrives. Threads wait for all others before the first operation: both, and rows, may be written until this is
    called.
    """
    _run(task, counter, 0, threads)
    for thread in range(1, threads):
        spins = 0
        while _look(states, APART * thread) == CALLED:
            spins += 1
            if spins % SPINS == 0:
                _let_others_run()


@kernel
def run_share(row, thread, threads):  # type: ignore[no-untyped-def]
    """Run an operation as one of several threads, independent of the others."""
    _call(row, 0, thread, threads)


@kernel
def serve(task, counter, thread, threads, states):  # type: ignore[no-untyped-def]
    """Run operations as another thread, whenever called, until there is no call for a while. states[…] is CALLED."""
    here = True
    while here:
        _run(task, counter, thread, threads)
        _exchange(states, APART * thread, CALLED, WAITING)
        spins = 0
        while here and _look(states, APART * thread) != CALLED:
            spins += 1
            if spins % SPINS == 0:
                _let_others_run()
            if spins >= LINGER:
                here = not _exchange(states, APART * thread, WAITING, GONE)


@kernel
def call(states, thread):  # type: ignore[no-untyped-def]
    """Return whether the thread lingers, and is called now; otherwise it must be started."""
    return _exchange(states, APART * thread, WAITING, CALLED)
