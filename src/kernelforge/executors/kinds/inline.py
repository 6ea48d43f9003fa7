"""A worker in a thread of this process, with the interface of `process`. For tests: it limits wall time only."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence

from kernelforge.executors.types import PACKET_BYTES, Death


class InlineWorker:
    """Runs `serve(channel)` in a thread; see `executors.types.Worker`.

    Args:
        serve: receives packets and answers each; returning ends the worker. It must return when the channel closes.
        wall_s: wall time of one request.
    """

    def __init__(self, serve: Callable[[socket.socket], None], *, wall_s: float = 10.0) -> None:
        self._wall_s = wall_s
        self._death: Death | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=_serve, args=(serve, theirs), daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return os.getpid()

    def grant(self, memory_bytes: int) -> None:
        """No memory limit is kept in this process."""

    def request(self, message: bytes, *, fds: Sequence[int] = (), wall_s: float | None = None) -> bytes | Death:
        if self._death is not None:
            return self._death
        limit = self._wall_s if wall_s is None else wall_s
        self._channel.settimeout(limit)
        try:
            if message:
                socket.send_fds(self._channel, [message], list(fds))
            reply = self._channel.recv(PACKET_BYTES)
        except TimeoutError:
            self._death = Death(kind="timeout", detail=f"no reply within {limit:g} s")
            return self._death
        except OSError:
            reply = b""
        if not reply:
            self._death = Death(kind="crash", detail="it ended without a reply")
            return self._death
        return reply

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._thread.join(self._wall_s)
        if self._death is None:
            self._death = Death(kind="crash", detail="the worker was closed")


def _serve(serve: Callable[[socket.socket], None], channel: socket.socket) -> None:
    with channel:
        serve(channel)
