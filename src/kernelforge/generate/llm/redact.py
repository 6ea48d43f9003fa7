"""Takes keys out of text that is logged, stored or raised."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

HIDDEN = "[hidden]"

SHORTEST_SECRET = 8
"""Characters. Servers that need no key are given words such as EMPTY, which also occur in source code."""

# A header with its value in a dump of headers, in JSON, in Python's repr (bytes too) or as a plain line; a bearer token
# anywhere; and keys that providers begin with a mark of their own.
_PATTERNS = (
    re.compile(
        r"""(?ix) ( (?: x-api-key | x-goog-api-key | api-key | proxy-authorization | authorization | set-cookie )
        ["']? \s* [:=,] \s* (?:b?["'])? ) (?: (?:bearer|basic) \s+ )? (?!\[hidden\]) [^\s"',;)\]}]{4,}"""
    ),
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"()\b(?:sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,})"),
)

LIBRARIES = frozenset(
    {"anthropic", "asyncio", "google", "google_genai", "httpcore", "httpcore2", "httpx", "httpx2", "openai"}
    | {"pydantic_ai"}
)
"""First parts of the names of all loggers that a request may write to."""


@lru_cache(maxsize=32)
def _forms(secret: str) -> tuple[str, ...]:
    """How a secret may look that comes back: quoted in a URL or in JSON, or read in another encoding than it was sent.

    The longest first: a short one may be part of it.
    """
    forms = {secret, quote(secret, safe="")}
    if not secret.isascii():
        sent = {secret.encode(encoding, "replace") for encoding in ("utf-8", "latin-1", "cp1252", "ascii")}
        read = {raw.decode(encoding, "replace") for raw in sent for encoding in ("utf-8", "latin-1", "cp1252", "ascii")}
        forms |= {*read, *(quote(raw, safe="") for raw in sent), *(str(raw)[2:-1] for raw in sent)}
        forms |= {ascii(form)[1:-1] for form in (secret, *read)} | {json.dumps(form)[1:-1] for form in (secret, *read)}
    # A key of such letters alone would leave nothing but question marks.
    known = {form for form in forms if len(re.sub(r"[?\ufffd]", "", form)) >= SHORTEST_SECRET // 2}
    return tuple(sorted(known, key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class Redactor:
    """Hides known secrets, and what looks like one. Its repr does not show them.

    Also a filter for loggers, so that what libraries log about a request is cleaned before any handler sees it.
    """

    secrets: tuple[str, ...] = field(repr=False, default=())

    def __call__(self, text: str) -> str:
        """`text` of a message, of a log or of an error, without secrets and without what may be one."""
        text = self.exact(text)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\g<1>{HIDDEN}", text)
        return text

    def exact(self, text: str) -> str:
        """`text` without the known secrets. For replies, in which nothing else may change."""
        for secret in self.secrets:
            if len(secret) >= SHORTEST_SECRET:
                for form in _forms(secret):
                    text = text.replace(form, HIDDEN)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a record in place. Never drops one."""
        text = record.getMessage()
        if record.exc_info:
            # A handler would format the exception itself, and with it the body of a reply.
            text += "\n" + logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        record.msg, record.args, record.exc_text = self(text), (), None
        return True

    def guard_logs(self) -> None:
        """Put this filter on the loggers of all libraries that take part. A filter of a parent would not see them."""
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] in LIBRARIES:
                logger = logging.getLogger(name)
                # Equal filters, of the same secrets, count as one.
                if self not in logger.filters:
                    logger.addFilter(self)
