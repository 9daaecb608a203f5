"""Work on what strangers wrote, in a process of its own that `gguftools.metadata.sandbox` bounds."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from subprocess import DEVNULL, PIPE
from typing import Any

WAITING = 4  # times as long as the processor time may pass, on a busy machine
MAX_OUTPUT = 64 << 20  # bytes of what the child says
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"


def ask(module: str, request: Mapping[str, Any], seconds: float) -> tuple[list[Any], str]:
    """Return the answers of a module's `serve` (a line of JSON each), and why it ended too early, or "".

    seconds: of processor time.
    """
    ended = {
        -number for name in ("SIGPROF", "SIGKILL") if (number := getattr(signal, name, None))
    }  # Windows has neither
    command = [sys.executable, "-I", "-c", PROGRAM.format(module), json.dumps(sys.path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as child:
        stop = threading.Timer(WAITING * seconds, child.kill)  # for what takes no processor time
        stop.start()
        try:
            output = _exchange(child, json.dumps({**request, "seconds": seconds}).encode())
        finally:
            stop.cancel()
            child.kill()
    lines = [json.loads(line) for line in output.splitlines() if line.endswith((b"}", b"]"))]
    if not child.returncode:
        return lines, ""
    if child.returncode in ended:
        return lines, f"does not end within {seconds:g} s"
    return lines, "breaks off: it nests too deeply, or takes too much memory"


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Write the request, and read the child's answers up to their limit."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(request)
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    output = child.stdout.read(MAX_OUTPUT)
    if len(output) < MAX_OUTPUT:
        child.wait()  # it has closed its output, so its end is near
    return output
