"""What a profiler measured of stored binaries, as rows and back. Owns the format of the column `metrics`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernelforge.digest import Json, canonical_json, encode_float
from kernelforge.explain.profile import KernelProfile, Profile
from kernelforge.store.models import ProfileRow
from kernelforge.store.serial import Fields, parse_json

logger = logging.getLogger(__name__)

_COUNTS, _SHARES = ("grid", "block", "registers", "sms"), ("units", "stalls")
_NUMBERS = tuple(f.name for f in fields(KernelProfile) if f.name not in ("name", *_COUNTS, *_SHARES))


def keep_profile(session: Session, binary: str, profile: Profile) -> None:
    """Store a profile, unless a newer one of that binary on that device is known."""
    known = session.get(ProfileRow, (binary, profile.device))
    if known is not None and known.recorded > profile.recorded:
        return
    row = ProfileRow(
        binary=binary, device=profile.device, metrics=canonical_json(_metrics(profile)), recorded=profile.recorded
    )  # fmt: skip
    session.merge(row)


def profile_to_json(binary: str, profile: Profile) -> dict[str, Json]:
    """A profile as it travels."""
    recorded = encode_float(profile.recorded)
    return {"binary": binary, "device": profile.device, "recorded": recorded, "metrics": _metrics(profile)}


def profile_from_json(data: Json) -> tuple[str, Profile]:
    """The inverse of `profile_to_json`.

    Raises:
        ValueError: it is none.
    """
    read = Fields(data)
    device, recorded = read.text("device"), read.number("recorded")
    if not math.isfinite(recorded):
        raise ValueError("field 'recorded' is no time")
    return read.text("binary"), _profile(read.value("metrics"), device=device, recorded=recorded)


def _metrics(profile: Profile) -> Json:
    kernels: list[Json] = [_kernel_to_json(kernel) for kernel in profile.kernels]
    return {"dims": dict(profile.dims), "cold": profile.cold, "kernels": kernels}


def read_profiles(session: Session, warned: set[str]) -> Mapping[str, Profile]:
    """The newest profile of each binary, by its sha256. Damaged ones are left out, with a warning in the log.

    Args:
        warned: binaries of which that was said before; grows.
    """
    found = {}
    for row in session.scalars(select(ProfileRow).order_by(ProfileRow.recorded)):
        try:
            found[row.binary] = _profile(parse_json(row.metrics), device=row.device, recorded=row.recorded)
        except ValueError as error:
            if row.binary not in warned:
                warned.add(row.binary)
                logger.warning("the profile of binary %s is damaged: %s", row.binary[:12], error)
    return found


def _kernel_to_json(kernel: KernelProfile) -> Json:
    data = asdict(kernel)
    for name in _NUMBERS:
        data[name] = None if data[name] is None else encode_float(data[name])
    for name in _SHARES:
        data[name] = {key: encode_float(value) for key, value in data[name].items()}
    return data


def _profile(metrics: Json, *, device: str, recorded: float) -> Profile:
    read = Fields(metrics)
    dims = read.object("dims")
    return Profile(
        device=device, recorded=recorded, cold=read.flag("cold"),
        dims={name: dims.integer(name) for name in dims.names()},
        kernels=tuple(_kernel(each) for each in read.objects("kernels")),
    )  # fmt: skip


def _kernel(read: Fields) -> KernelProfile:
    shares = {name: read.object(name) for name in _SHARES}
    numbers = {name: read.number_or_none(name) for name in _NUMBERS if name != "duration_us"}
    return KernelProfile(
        name=read.text("name"), grid=read.integer("grid"), block=read.integer("block"),
        registers=read.integer_or_none("registers"), sms=read.integer_or_none("sms"),
        duration_us=read.number("duration_us"),
        units={key: shares["units"].number(key) for key in shares["units"].names()},
        stalls={key: shares["stalls"].number(key) for key in shares["stalls"].names()},
        **numbers,
    )  # fmt: skip
