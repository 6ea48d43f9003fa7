"""A project as one file that travels: to a machine with a GPU and back, or to somebody else. Owns the `.anvil` format.

A ZIP like a package's (`package.archive`: strict, nothing in it is executed): `HEADER.json` first, `cards/`,
`capture.json`, `trials.jsonl` (one finished trial a line, parents first), `blobs/<sha256>` (binaries of accepted
candidates), `profiles.jsonl` if some of these were profiled, `examples/` if asked for, `checksums.sha256` last. What
exports decided stays behind: it was timed through the dispatch of one machine. So do open work orders: they are leased
to processes of one machine.
Nodes have globally unique ids, so merging is adding those that are not there. Nothing of a file is believed: names,
header, cards and trials (`store.checks`) are checked before anything is stored, and before a file is written.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from kernelforge.cards.serial import load_cards
from kernelforge.cards.types import OperatorCard
from kernelforge.digest import Json, canonical_json
from kernelforge.errors import NotFound, PackageError, ProjectError, SchemaTooNew, UsageError
from kernelforge.explain.profile import Profile
from kernelforge.package.archive import MAX_FILE_BYTES, pack, unpack
from kernelforge.package.layout import CHECKSUMS, checksums
from kernelforge.store.blobs import write_atomically
from kernelforge.store.checks import check_foreign
from kernelforge.store.draft import BLOBS, CAPTURE, CARDS, EXAMPLES, start_draft
from kernelforge.store.profiles import profile_from_json, profile_to_json
from kernelforge.store.project import Project
from kernelforge.store.serial import parse_json
from kernelforge.store.types import StoredTrial

SUFFIX = ".anvil"
HEADER, TRIALS, PROFILES = "HEADER.json", "trials.jsonl", "profiles.jsonl"
FORMAT, VERSION = "kernelforge.project", 2
WITHOUT_PROFILES = 1
"""The version of a file in which there are none: an older kernelforge reads it too."""
_NAMES = re.compile(
    rf"{re.escape(HEADER)}|{re.escape(CAPTURE)}|{re.escape(TRIALS)}|{re.escape(PROFILES)}|{re.escape(CHECKSUMS)}"
    rf"|{CARDS}/[^/]+\.json|{BLOBS}/[0-9a-f]{{64}}|{EXAMPLES}/.+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """trials: how many were added. known: how many were there already. by_variant: label -> added."""

    trials: int
    known: int
    by_variant: Mapping[str, int]


def pack_project(project: Project, path: Path, *, examples: bool = False) -> int:
    """Write a project into a file; an existing one is replaced only by a complete one.

    Args:
        examples: take the captured tensors along; without them inputs are drawn anew where the file is unpacked.

    Returns:
        How many trials it holds.

    Raises:
        ProjectError: the project is damaged, or the file cannot be written or would be too large.
    """
    trials, profiles = project.stored_trials(), project.profiles()
    info = dict(project.capture_info)
    # The folder of whoever captured it says nothing elsewhere.
    info["source"] = _portable_source(info.get("source", ""))
    files = {
        HEADER: canonical_json({
            "format": FORMAT, "version": VERSION if profiles else WITHOUT_PROFILES, "model": project.model,
            "device": project.device, "created": project.created, "trials": len(trials), "examples": examples,
        }).encode(),
        CAPTURE: _capture(project, info),
        TRIALS: "".join(canonical_json(trial.to_json()) + "\n" for trial in trials).encode(),
    }  # fmt: skip
    if profiles:
        lines = (canonical_json(profile_to_json(*each)) for each in sorted(profiles.items()))
        files[PROFILES] = "".join(f"{line}\n" for line in lines).encode()
    try:
        for file in sorted((project.path / CARDS).glob("*.json")):
            files[f"{CARDS}/{file.name}"] = file.read_bytes()
        for digest in sorted({t.artifact for t in trials if t.artifact}):
            files[f"{BLOBS}/{digest}"] = project.binary(digest).read_bytes()
        for file in sorted((project.path / EXAMPLES).rglob("*")) if examples else ():
            if file.is_file() and not file.name.startswith("."):
                files[f"{EXAMPLES}/{file.relative_to(project.path / EXAMPLES).as_posix()}"] = file.read_bytes()
        files[CHECKSUMS] = checksums(files)
        data = pack(files)
        _check_readable(path, data, trials)
        write_atomically(path, data)
    except PackageError as error:
        hint = "leave the examples out: they are redrawn" if examples else ""
        raise ProjectError(f"{project.path} cannot be packed: {error.message}", hint=hint) from error
    except OSError as error:
        raise ProjectError(
            f"cannot write {path}: {error.strerror or error}", hint="free some space, or choose another place with -o"
        ) from error
    return len(trials)


def unpack_project(path: Path, destination: Path, *, overwrite: bool = False) -> Project:
    """Make a project of a file, whole or not at all.

    Raises:
        NotFound: no such file. UsageError: something stands at the destination.
        ProjectError: the file is damaged, was edited or holds no project. SchemaTooNew: of a newer kernelforge.
    """
    files = _read(path)
    header, trials, cards = _header(path, files), _trials(path, files), _cards(path, files)
    profiles = _profiles(path, files)
    with start_draft(destination, overwrite=overwrite) as draft:
        for name, data in files.items():
            if name.startswith(f"{EXAMPLES}/"):
                _write_example(draft.folder / name, data)

        def fill(folder: Path) -> None:
            opened = Project.open(folder)
            opened.add_trials(trials, _blobs(files))
            _add_profiles(opened, profiles)

        draft.publish(
            model=str(header["model"]), device=str(header["device"]), cards=cards,
            capture_info=_object(path, files, CAPTURE), created=_number(header["created"]), fill=fill,
        )  # fmt: skip
    return Project.open(destination)


def merge_project(project: Project, other: Path) -> Merged:
    """Add what another copy of the same capture has tried: none is lost, none doubled, and all or none are added.

    Args:
        other: a project folder, or a file that `pack_project` wrote.

    Raises:
        NotFound: nothing is there. UsageError: it is of another capture.
        ProjectError: it is damaged. SchemaTooNew: of a newer kernelforge.
    """
    known = {r.variant.id: r.variant.label for card in project.cards() for r in card.variants}
    if other.is_dir():
        opened = Project.open(other)
        variants, trials, profiles = _variants(opened.cards()), opened.stored_trials(), opened.profiles()
        _check_binaries(other, trials)
        blobs: Mapping[str, bytes] = {t.artifact: opened.binary(t.artifact).read_bytes() for t in trials if t.artifact}
    else:
        files = _read(other)
        _header(other, files)
        variants, trials, blobs = _variants(_cards(other, files)), _trials(other, files), _blobs(files)
        profiles = _profiles(other, files)
    strangers = variants - known.keys()
    if strangers:
        raise UsageError(
            f"{other} is of another capture: {project.path} lacks {len(strangers)} of its {len(variants)} variants",
            hint="merge copies of one project, made with `kforge project pack` or by copying the folder",
        )
    added = project.add_trials(trials, blobs)
    _add_profiles(project, profiles)
    by_variant: dict[str, int] = {}
    for trial in added:
        by_variant[known[trial.variant_id]] = by_variant.get(known[trial.variant_id], 0) + 1
    return Merged(trials=len(added), known=len(trials) - len(added), by_variant=by_variant)


def _read(path: Path) -> dict[str, bytes]:
    hint = "pack the project again"
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no file at {path}", hint="make one with: kforge project pack PROJECT -o FILE") from error
    except OSError as error:
        raise ProjectError(f"{path} cannot be read: {error.strerror}") from error
    try:
        files = unpack(data, first=HEADER, expected=_is_expected)
    except PackageError as error:
        raise ProjectError(f"{path} is no packed project: {error.message}", hint=hint) from error
    if files.get(CHECKSUMS) != checksums({n: d for n, d in files.items() if n != CHECKSUMS}):
        raise ProjectError(f"{path} was damaged or edited: its checksums do not fit", hint=hint)
    return files


def _header(path: Path, files: Mapping[str, bytes]) -> Mapping[str, Json]:
    header = _object(path, files, HEADER)
    if header.get("format") != FORMAT:
        raise ProjectError(f"{path} is no packed project", hint="`kforge cast inspect` looks into packages")
    version = header.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ProjectError(f"{path}: {HEADER} names no version", hint="pack the project again")
    if version > VERSION:
        raise SchemaTooNew(
            f"{path} has version {version}, this kernelforge reads up to {VERSION}", hint="upgrade kernelforge"
        )
    if not isinstance(header.get("model"), str) or header.get("device") not in ("cpu", "cuda"):
        raise ProjectError(f"{path}: {HEADER} names no model or no device", hint="pack the project again")
    if not (math.isfinite(created := _number(header.get("created"))) and created >= 0):
        raise ProjectError(f"{path}: {HEADER} does not say when it was created", hint="pack the project again")
    return header


def _trials(path: Path, files: Mapping[str, bytes]) -> tuple[StoredTrial, ...]:
    try:
        # Not `splitlines`: JSON may hold what else Unicode takes for the end of a line.
        lines = files[TRIALS].decode().split("\n")
        trials = tuple(StoredTrial.from_json(parse_json(line)) for line in lines if line)
    except (KeyError, ValueError) as error:
        raise ProjectError(f"{path}: {TRIALS} is damaged: {error}", hint="pack the project again") from error
    _check_binaries(path, trials)
    return trials


def _profiles(path: Path, files: Mapping[str, bytes]) -> Mapping[str, Profile]:
    try:
        lines = files.get(PROFILES, b"").decode().split("\n")
        return dict(profile_from_json(parse_json(line)) for line in lines if line)
    except ValueError as error:
        raise ProjectError(f"{path}: {PROFILES} is damaged: {error}", hint="pack the project again") from error


def _add_profiles(project: Project, profiles: Mapping[str, Profile]) -> None:
    for binary, profile in profiles.items():
        project.keep_profile(binary, profile)


def _check_binaries(path: Path, trials: Sequence[StoredTrial]) -> None:
    for trial in trials:
        if trial.kind == "accepted" and not trial.artifact:
            raise ProjectError(
                f"{path}: trial {trial.id[:12]!a} was accepted, and its binary is not there",
                hint="pack the project again",
            )


def _check_readable(path: Path, data: bytes, trials: Sequence[StoredTrial]) -> None:
    """A file that would be refused later must not be written."""
    files = unpack(data, first=HEADER, expected=_is_expected)
    _header(path, files)
    _profiles(path, files)
    variants, back = _variants(_cards(path, files)), _trials(path, files)
    if len(check_foreign(back, variants=variants, stored={}, nodes={})) != len(trials) or back != tuple(trials):
        raise ProjectError(f"{path} would not hold the trials of the project", hint="report this")


def _cards(path: Path, files: Mapping[str, bytes]) -> tuple[OperatorCard, ...]:
    names = {PurePath(name).name: data for name, data in files.items() if name.startswith(f"{CARDS}/")}
    try:
        with tempfile.TemporaryDirectory(prefix="kernelforge-cards-") as folder:
            for name, data in names.items():
                (Path(folder) / name).write_bytes(data)
            cards = load_cards(Path(folder))
    except ProjectError as error:
        raise type(error)(f"{path}: a card cannot be read: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise ProjectError(f"the cards of {path} cannot be unpacked: {error.strerror}") from error
    except (ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ProjectError(f"{path}: a card is damaged: {error}", hint="pack the project again") from error
    if sorted(names) != sorted(f"{card.operator}.json" for card in cards):
        # The operator's name becomes the name of a file.
        raise ProjectError(f"{path}: a card is not of the operator that its file names", hint="pack the project again")
    return cards


def _variants(cards: Sequence[OperatorCard]) -> set[str]:
    return {r.variant.id for card in cards for r in card.variants}


def _write_example(target: Path, data: bytes) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise ProjectError(
            f"cannot write {target}: {error.strerror}", hint="free some space, or name another folder"
        ) from error


def _is_expected(name: str) -> bool:
    return _NAMES.fullmatch(name) is not None


def _blobs(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {n.removeprefix(f"{BLOBS}/"): data for n, data in files.items() if n.startswith(f"{BLOBS}/")}


def _object(path: Path, files: Mapping[str, bytes], name: str) -> Mapping[str, Json]:
    try:
        value = parse_json(files[name])
    except (KeyError, ValueError) as error:
        raise ProjectError(f"{path}: {name} is missing or damaged", hint="pack the project again") from error
    if not isinstance(value, dict):
        raise ProjectError(f"{path}: {name} holds no JSON object", hint="pack the project again")
    return value


def _number(value: Json) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _capture(project: Project, info: Mapping[str, Json]) -> bytes:
    try:
        return canonical_json(info).encode()
    except ValueError as error:
        raise ProjectError(
            f"{project.path / CAPTURE} cannot be packed: {error}", hint="capture again with --overwrite"
        ) from error


def _portable_source(source: Json) -> Json:
    return PurePath(source).name if isinstance(source, str) and PurePath(source).is_absolute() else source
