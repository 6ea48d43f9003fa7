"""What an executor takes and gives. Owns `Limits`, `Death`, `Worker`.

A worker is something at the other end of a packet socket: one request packet (with file descriptors attached), one
reply packet. Replies are bytes; whoever asked validates them. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

DeathKind: TypeAlias = Literal["crash", "timeout", "oom", "protocol", "load"]

PACKET_BYTES = 128 * 1024
"""The largest packet either side may send; anything bigger goes through a memfd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a worker may use.

    Attributes:
        wall_s: wall time of one request, seconds.
        memory_bytes: resident memory of the process tree, beyond what the owner has granted with `Worker.grant`.
        output_bytes: how much of stdout and stderr is kept (the last bytes; the rest is read and thrown away).
    """

    wall_s: float = 60.0
    memory_bytes: int = 8 << 30
    output_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker ended before it had answered. It is dead from then on; every later request returns the same value.

    Attributes:
        kind: "crash" it died by a signal or left without a reply; "timeout" killed at its wall deadline; "oom" killed
            at its memory limit, or by the kernel; "protocol" its reply makes no sense; "load" it could not start
            the work (for example a binary with an undefined symbol).
        detail: one sentence: the signal's name, the limit ...
        output: the last bytes of its stdout and stderr, undecodable bytes replaced.
    """

    kind: DeathKind
    detail: str
    output: str = ""


class Worker(Protocol):
    """One live process (or thread, in tests). Not thread-safe: one request at a time."""

    @property
    def pid(self) -> int: ...

    def grant(self, memory_bytes: int) -> None:
        """Change the memory allowance beyond `Limits.memory_bytes` by this much (negative: take it back)."""
        ...

    def request(self, message: bytes, *, fds: Sequence[int] = (), wall_s: float | None = None) -> bytes | Death:
        """Send one packet and wait for one (an empty message only waits). `wall_s` overrides the limit.

        Raises:
            HarnessError: the message is larger than `PACKET_BYTES`.
        """
        ...

    def close(self) -> None:
        """End it and everything that it started, and reap. Idempotent."""
        ...
