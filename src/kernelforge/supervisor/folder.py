"""A run on disk, `runs/<id>/` in its project. Owns the files' formats.

`run.json` is what was asked; `wish` what it was told last; `worker-<n>.json` how far a worker is, `worker-<n>.jsonl`
what happened (`supervisor.feed`), `worker-<n>.log` its stdout and stderr. All but the last two are replaced whole, so a
reader, or a crash, never sees half of one. Each file has one writer: the worker, or whoever holds the run's lock.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock

from kernelforge.digest import Json
from kernelforge.errors import NotFound, ProjectError
from kernelforge.search.owners import is_gone, is_here, pid_of
from kernelforge.search.types import Budget
from kernelforge.store.blobs import write_atomically
from kernelforge.supervisor.types import LIVE, Run, RunStatus, Wish, WorkerState, state_of
from kernelforge.wording import plural

logger = logging.getLogger(__name__)

FORMAT = 1
RUNS = "runs"
LATEST = "latest"
HEARTBEAT_S = 2.0
SILENT_S = 60.0
"""A worker on another host, or in a container, that was silent for so long counts as dead; here the process tells."""


class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder. project: the folder of its project.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.project = path.parent.parent

    @staticmethod
    def create(project: Path, run: Run) -> RunFolder:
        """Write what is asked for, under an id that no run of the project has yet; the run's own is ignored.

        Raises:
            ProjectError: the project cannot be written.
        """
        while True:
            path = project / RUNS / secrets.token_hex(3)
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise _unwritable(path, error) from error
            folder = RunFolder(path)
            folder._write("run.json", {"format": FORMAT, **asdict(replace(run, id=path.name))})
            return folder

    @property
    def id(self) -> str:
        return self.path.name

    def run(self) -> Run:
        """What was asked for.

        Raises:
            ProjectError: the file is damaged, another user's, or of a newer kernelforge.
        """
        record = self._read("run.json", hint=f"delete the folder {self.path}")
        try:
            if record.pop("format") != FORMAT:
                raise ProjectError(f"run {self.id} was written by another kernelforge", hint="use that version")
            for name, kind in (("operators", tuple), ("devices", tuple), ("budget", lambda fields: Budget(**fields))):
                record[name] = kind(record[name])
            return Run(**record)
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged("run.json", error, hint=f"delete the folder {self.path}") from error

    def wish(self) -> Wish:
        """What the run was told last."""
        try:
            text = (self.path / "wish").read_text()
        except OSError:
            return "run"
        return next((w for w in get_args(Wish) if w == text), "run")

    def tell(self, wish: Wish) -> None:
        """Raises ProjectError if the project cannot be written."""
        self._write_bytes("wish", wish.encode())

    def worker(self, number: int) -> WorkerState:
        """How far a worker is.

        Raises:
            ProjectError: the file is damaged, or another user's.
        """
        name = f"worker-{number}.json"
        hint = f"delete {self.path / name}: the worker's part of the budget begins anew then"
        try:
            record = self._read(name, hint=hint)
        except FileNotFoundError:
            return WorkerState()
        try:
            record["unsettled"] = tuple(record.get("unsettled", ()))
            # A newer kernelforge may have written more.
            return WorkerState(**{f.name: record[f.name] for f in fields(WorkerState) if f.name in record})
        except TypeError as error:
            raise self._damaged(name, error, hint=hint) from error

    def write_worker(self, number: int, state: WorkerState) -> None:
        """Raises ProjectError if the project cannot be written."""
        self._write(f"worker-{number}.json", asdict(state))

    def feed(self, number: int) -> Path:
        """The file of a worker's events."""
        return self.path / f"worker-{number}.jsonl"

    def log(self, number: int) -> Path:
        """The file of a worker's stdout and stderr."""
        return self.path / f"worker-{number}.log"

    def lock(self) -> FileLock:
        """For whoever starts or ends processes of the run."""
        return FileLock(self.path / "lock")

    def worker_lock(self, number: int) -> FileLock:
        """Held by the worker's process as long as it lives."""
        return FileLock(self.path / f"worker-{number}.lock", blocking=False)

    def status(self) -> RunStatus:
        """The run as it stands. A worker whose file cannot be read is unknown, with the reason as its error.

        Raises:
            ProjectError: the description is damaged, or another user's.
        """
        run = self.run()
        workers = tuple(self._worker_or_why_not(i) for i in range(len(run.devices)))
        live = tuple(i for i, w in enumerate(workers) if is_live(w))
        return RunStatus(
            run=run, project=str(self.project), workers=workers, live=live, state=state_of(workers, live, self.wish())
        )

    def _worker_or_why_not(self, number: int) -> WorkerState:
        try:
            return self.worker(number)
        except ProjectError as error:
            return WorkerState(stage="unknown", tokens=None, usd=None, error=error.message, hint=error.hint)

    def _read(self, name: str, *, hint: str) -> dict[str, Any]:
        """A file that holds a JSON object. `hint`: what to do if it does not.

        Raises:
            FileNotFoundError, ProjectError.
        """
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise _forbidden(path) from error
        except OSError as error:
            raise ProjectError(f"{path} cannot be read: {error.strerror}", hint="check the disk") from error
        if not data.strip(b"\0"):
            raise self._damaged(name, "it is empty, as after a crash or with a full disk", hint=hint)
        try:
            record = json.loads(data)
        except ValueError as error:
            raise self._damaged(name, error, hint=hint) from error
        if not isinstance(record, dict):
            raise self._damaged(name, "no JSON object", hint=hint)
        return record

    def _damaged(self, name: str, error: object, *, hint: str) -> ProjectError:
        return ProjectError(f"{self.path / name} is damaged: {error}", hint=hint)

    def _write(self, name: str, record: Json) -> None:
        self._write_bytes(name, json.dumps(record, indent=1).encode())

    def _write_bytes(self, name: str, data: bytes) -> None:
        try:
            write_atomically(self.path / name, data)
        except OSError as error:
            raise _unwritable(self.path, error) from error


def is_live(worker: WorkerState) -> bool:
    """Whether the process of a worker lives, as far as can be known from here."""
    if worker.stage not in LIVE or pid_of(worker.owner) is None or is_gone(worker.owner):
        return False
    return is_here(worker.owner) or time.time() - worker.heartbeat < SILENT_S


def runs_of(projects: Iterable[Path]) -> list[RunFolder]:
    """The runs of some projects, oldest first. One whose description cannot be read is a warning."""
    found: list[tuple[float, RunFolder]] = []
    for project in projects:
        for file in (project / RUNS).glob("*/run.json"):
            folder = RunFolder(file.parent)
            try:
                found.append((folder.run().created, folder))
            except (ProjectError, FileNotFoundError) as error:
                logger.warning("run %s is left out: %s", folder.id, error)
    return [folder for _, folder in sorted(found, key=lambda pair: (pair[0], pair[1].id))]


def find_run(projects: Sequence[Path], name: str) -> RunFolder:
    """The run whose id starts so; "latest" is the newest.

    Raises:
        NotFound: none, or more than one.
    """
    runs = runs_of(projects)
    found = runs[-1:] if name == LATEST else [r for r in runs if name and r.id.startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    where = ", ".join(p.name for p in projects) or "this folder"
    if not runs:
        raise NotFound(f"there is no run in {where}", hint="start one: kforge forge PROJECT --detach")
    listed = ", ".join(r.id for r in (found or runs)[-8:])
    if not found:
        raise NotFound(f"no run in {where} is called {name!r}", hint=f"runs: {listed}; kforge runs ls shows them")
    raise NotFound(f"{name!r} is the start of {plural(len(found), 'run')}", hint=f"name one of {listed}")


def _forbidden(path: Path) -> ProjectError:
    try:
        user = path.owner()
    except (OSError, KeyError):
        user = "another user"
    return ProjectError(f"{path} belongs to {user} and cannot be read by others", hint=f"ask for the run as {user}")


def _unwritable(path: Path, error: OSError) -> ProjectError:
    return ProjectError(
        f"cannot write {path}: {error.strerror}", hint="free disk space, or check the rights of the project's folder"
    )
