"""Hold a conversation on a terminal or in a pipe: read turns and commands, write answers as they are generated."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from quants.errors import GgufToolsError, OptionError

from ..io.atomic import atomic_output
from ..metadata.visible import visible
from ..models.chat import ChatPiece, Conversation, ConversationFullError
from . import interruption
from .streaming import KEPT
from .ui import note, print_error, print_text, read_line

HELP = """\
/help           list these commands
/clear          forget the conversation, but not the system message
/system TEXT    begin a new conversation with this system message (none without TEXT)
/regen          write the latest answer anew
/save FILE      write the conversation as JSON, which `generate --prompts FILE` reads
/exit           leave
A \\ at the end of a line continues it. // at the beginning stands for a /.
Ctrl-C stops an answer. Ctrl-D, or Ctrl-C twice at the prompt, leaves."""
DIM, PLAIN = "\033[2m", "\033[0m"
PROMPT = "> "


def converse(chat: Conversation) -> None:
    """Hold a conversation with a model until the input ends.

    On a terminal errors of a turn are shown, and the conversation goes on; in a pipe they end it.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        note("/help lists commands, Ctrl-D leaves")
    session = Session(chat, is_terminal)
    for line in _lines() if is_terminal else _piped_lines():
        try:
            if not session.take(line):
                return
        except GgufToolsError as error:
            if not is_terminal:
                raise
            print_error(error)


class Session:
    """Turns and commands of one conversation."""

    def __init__(self, chat: Conversation, is_terminal: bool) -> None:
        self._chat, self._is_terminal = chat, is_terminal
        self._saved: set[Path] = set()

    def take(self, line: str) -> bool:
        """Do what a line asks for; return False where it asks to leave. Raises OptionError for an unknown command."""
        if not line.startswith("/") or line.startswith("//"):
            self._show(self._chat.ask(line.removeprefix("/")))
            return True
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/exit" | "/quit" | "/bye":
                return False
            case "/help":
                print_text(HELP)
            case "/clear":
                self._chat.clear()
            case "/system":
                self._chat.system = rest.strip() or None
            case "/regen":
                self._show(self._chat.regenerate())
            case "/save":
                self._save(rest.strip())
            case _:
                raise OptionError(f"there is no command {command}", "/help lists all; // begins a line with a /")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise OptionError("/save needs the name of a file", "/save conversation.json")
        path = Path(name).expanduser()
        with atomic_output(path, "w", overwrite=path.absolute() in self._saved) as file:
            json.dump({"messages": self._chat.messages}, file, ensure_ascii=False, indent=2)
            file.write("\n")
        self._saved.add(path.absolute())
        note(f"wrote {path}")

    def _show(self, pieces: Iterator[ChatPiece]) -> None:
        """Write an answer as it comes. On a terminal, Ctrl-C ends it, and reasoning is dimmed."""
        try:
            with closing(pieces):  # type: ignore[type-var]
                self._write(pieces)
        except KeyboardInterrupt:
            if not self._is_terminal or not _is_ctrl_c():
                raise
            note("stopped")
        except ConversationFullError as error:
            raise ConversationFullError(
                str(error), "/clear begins a new one, and --ctx takes a larger context"
            ) from None
        if self._chat.stop_reason == "context":
            note("warning: the context is full: /clear begins a new conversation, and --ctx takes a larger context")

    def _write(self, pieces: Iterator[ChatPiece]) -> None:
        dimmed, wrote = False, False
        try:
            for text, is_reasoning in pieces:
                if is_reasoning and not self._is_terminal:
                    continue
                if is_reasoning != dimmed:
                    sys.stdout.write(DIM if is_reasoning else f"{PLAIN}\n\n")
                    dimmed = is_reasoning
                sys.stdout.write(visible(text, KEPT) if self._is_terminal else text)
                sys.stdout.flush()
                wrote = True
                interruption.go_on()
        finally:
            sys.stdout.write((PLAIN if dimmed else "") + ("\n" if wrote or not self._is_terminal else ""))
            sys.stdout.flush()


def _piped_lines() -> Iterator[str]:
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\r\n")


def _lines() -> Iterator[str]:
    """Yield a user's lines, those joined that end with a backslash, until Ctrl-D or a second Ctrl-C."""
    with suppress(ImportError):
        import readline  # noqa: F401  # which lets lines be edited
    parts: list[str] = []
    warned = False
    while True:
        try:
            line = read_line("… " if parts else PROMPT)
        except EOFError:
            print_text()
            return
        except KeyboardInterrupt:
            if not _is_ctrl_c():
                raise
            print_text()
            if warned:
                return
            note("Ctrl-C again, or Ctrl-D, leaves")
            warned, parts = True, []
            continue
        warned = False
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        text, parts = "\n".join([*parts, line]), []
        if text.strip():
            yield text


def _is_ctrl_c() -> bool:
    """Return True if Ctrl-C interrupted, not a signal that ends the program; a Ctrl-C then counts as handled."""
    if interruption.arrived not in (None, signal.SIGINT):
        return False
    interruption.arrived = None
    return True
