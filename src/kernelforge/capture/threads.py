"""Notices work that the recorder cannot see: torch modes are per thread, so calls from other threads go unrecorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


@contextmanager
def watch_threads(warnings: list[str]) -> Iterator[None]:
    """Append a warning if the body starts a thread, or hands work to a thread pool. Restores what it wraps."""
    started: list[str] = []
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def noting_start(self: threading.Thread) -> None:
        started.append(self.name)
        start(self)

    def noting_submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        started.append("a thread pool")
        return submit(self, fn, *args, **kwargs)

    threading.Thread.start = noting_start  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = noting_submit  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
    if started:
        names = ", ".join(sorted(set(started))[:3])
        warnings.append(f"the model uses other threads ({names}): operator calls made there are not captured")
