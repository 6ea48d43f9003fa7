"""A command of `kforge` in a process of its own: for what runs a user's model, or a finished kernel, in its process.

Such a process imports the model anew however often its file changes, may crash without the server, gives the device's
memory back, and can be killed at any moment.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO

from kernelforge import errors
from kernelforge.digest import Json
from kernelforge.errors import ForgeError, HarnessError, Stopped, UsageError
from kernelforge.executors.detached import kill_family

LOOK_S = 0.1
KEPT_LINES = 20
"""Of what a process said before it died."""
LONGEST = 4096
"""Of an argument, in bytes: what is longer names no file, and a system hands over no argument of any length."""
SHOWN = 60
NEXT_STEP = "next: "
"""What the command line proposes, which a client has its tools for."""


def run_command(
    arguments: Sequence[str], *, say: Callable[[str], None], should_stop: Callable[[], bool]
) -> dict[str, Json]:
    """What `kforge ARGUMENTS --json` prints.

    Args:
        say: given each line of its progress. should_stop: looked at all the time; then the process is killed.

    Raises:
        ForgeError: as the command. Stopped: it was killed. HarnessError: it died. UsageError: no process can be given
            such arguments.
    """
    for argument in arguments:
        if problem := _problem(argument):
            raise UsageError(f"{argument[:SHOWN]!r} {problem}", hint="give a name, or the path of a file or folder")
    command = [sys.executable, "-m", "kernelforge", *arguments]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            said = _follow(process, say, should_stop)
        except BaseException:
            kill_family(process.pid)
            raise
        printed.seek(0)
        return _document(printed.read(), process.returncode, said)


def _problem(argument: str) -> str:
    """Why a process cannot be given an argument, as the end of a sentence, or ""."""
    try:
        size = len(os.fsencode(argument))
    except UnicodeEncodeError as error:
        return f"is no text: {error.reason} at character {error.start}"
    if size > LONGEST:
        return f"... is longer than {LONGEST} bytes"
    return "holds a NUL character" if "\0" in argument else ""


def _follow(process: subprocess.Popen[str], say: Callable[[str], None], should_stop: Callable[[], bool]) -> list[str]:
    """Pass on what it says until it ends; its last lines."""
    assert process.stderr is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process.stderr, lines), daemon=True).start()
    said: list[str] = []
    while True:
        if should_stop():
            raise Stopped("stopped; nothing was written", hint="call it again")
        ended = process.poll() is not None
        try:
            line = lines.get(timeout=LOOK_S)
        except queue.Empty:
            if ended:
                return said
            continue
        said = [*said, line][-KEPT_LINES:]
        if not line.startswith(NEXT_STEP):
            say(line)


def _read(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        if line.strip():
            lines.put(line.rstrip())


def _document(printed: str, code: int, said: Sequence[str]) -> dict[str, Json]:
    try:
        # The last thing printed: the model itself may print before.
        document, _ = json.JSONDecoder().raw_decode(printed, printed.rfind("\n{\n") + 1)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise HarnessError(f"the process ended with status {code}", hint="\n".join(said) or "it said nothing")
    if "error" not in document:
        return document
    error = document["error"]
    kind = getattr(errors, str(error["kind"]), ForgeError)
    raise kind(error["message"], hint=error["hint"])
