"""What `kforge profile` reports: the diagnosis of some kernels, as plain data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import cast

from kernelforge.digest import Json
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.report.rows import finite


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRow:
    """One trial.

    Attributes:
        lines: the diagnosis. profile: what it was made of; None if there is none, and then `why` and what to do, `fix`.
    """

    node: str
    number: int
    lines: tuple[str, ...] = ()
    profile: Profile | None = None
    why: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Json]:
        profile = self.profile
        return {
            "node": self.node, "number": self.number, "lines": list(self.lines), "why": self.why, "fix": self.fix,
            "profile": None if profile is None else {
                "device": profile.device, "dims": dict(profile.dims), "cold": profile.cold,
                "recorded": profile.recorded, "kernels": [_kernel(k) for k in profile.kernels],
            },
        }  # fmt: skip

    def text(self) -> Iterator[str]:
        if self.profile is None:
            yield f"#{self.number}  not available: {self.why}"
            if self.fix:
                yield f"    {self.fix}"
            return
        first, *rest = self.lines
        yield f"#{self.number}  {first}"
        yield from (f"    {line}" for line in rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """Some trials of one variant. label: of it."""

    label: str
    variant: str
    rows: tuple[ProfiledRow, ...]

    def text(self) -> str:
        return "\n".join([self.label, *(line for row in self.rows for line in row.text())])

    def to_json(self) -> dict[str, Json]:
        return {"label": self.label, "variant": self.variant, "trials": [row.to_json() for row in self.rows]}


def _kernel(kernel: KernelProfile) -> dict[str, Json]:
    data: dict[str, Json] = {}
    for name, value in asdict(kernel).items():
        if isinstance(value, dict):
            data[name] = {key: finite(part) for key, part in value.items()}
        else:
            data[name] = finite(value) if isinstance(value, float) else cast(Json, value)
    return data
