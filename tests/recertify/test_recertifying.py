"""Certifying a package again: what is off until then, what is on after it, and what never is."""

from __future__ import annotations

import json
import logging
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kernelforge import recertifying
from kernelforge.benchmark.types import Interval
from kernelforge.certification import DispatchedPoint, DispatchTiming
from kernelforge.cli.main import make_app
from kernelforge.dispatch.loading import LoadedPackage, load
from kernelforge.errors import UntrustedPackage
from kernelforge.evaluate.types import Certified, MemoryPassed, WorkerFailure
from kernelforge.mode_timing import ModeTimings
from kernelforge.package.types import Entry, Off, Use
from kernelforge.packed_variants import record_of
from kernelforge.recertifying import recertify
from kernelforge.report.certified import RecertifyReport
from kernelforge.settings import Settings
from kernelforge.standing import open_standing
from kernelforge.verify.types import ErrorStatistics, Rejected, RejectReason

Write = Callable[..., Path]
REFUSAL = Rejected(reason=RejectReason.FORBIDDEN, case="the binary's dynamic symbols", detail="asks for dlopen")


class FakeJudge:
    """Finds every kernel right, at once."""

    def __enter__(self) -> FakeJudge:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def certify(self, *_: object, **__: object) -> Certified | WorkerFailure:
        exact = ErrorStatistics(max_abs=0.0, rms=0.0, eager_max_abs=0.0, eager_rms=0.0)
        return Certified(cases=9, worst=exact, bitwise=True, memory=MemoryPassed(tools=("AddressSanitizer",)))

    def conditions(self) -> dict[str, str]:
        return {"device": "a CPU"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is right, and twice as fast: what times say here depends on who else is at work."""
    pair = tuple(100.0 + i for i in range(12))
    point = DispatchedPoint(dims={"n0": 64}, calls=3, eager_us=pair, dispatched_us=tuple(t / 2 for t in pair))
    won = ModeTimings(timed={"eager": DispatchTiming(points=(point,))}, untimed={"graphed": "needs a CUDA device"})
    monkeypatch.setattr(recertifying, "time_in_modes", lambda package, records, *_, **__: [won] * len(records))
    monkeypatch.setattr(recertifying, "open_judge", lambda opened: FakeJudge())
    monkeypatch.setattr(recertifying, "build_ahead", lambda *_, **__: None)


def certified(path: Path, settings: Settings, **options: object) -> RecertifyReport:
    return recertify(path, settings=settings, say=lambda _: None, **options)  # type: ignore[arg-type]


def states(package: LoadedPackage) -> dict[str, str]:
    return {s.entry.variant.operator: s.reason or "on" for s in package.states}


def record_file(settings: Settings) -> Path:
    (path,) = (settings.config_dir / "records").glob("*/*.json")
    return path


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("kernelforge"), "propagate", True)
    return caplog


@pytest.mark.usefixtures("quick")
def test_off_under_another_torch_until_it_is_certified_here(
    write: Write, settings: Settings, x: torch.Tensor, logged: pytest.LogCaptureFixture
) -> None:
    path = write("relu", "abs")
    before = load(path, settings=settings)
    assert set(states(before).values()) == {f"judged under torch 2.4.1, this is {torch_here()}: certify it again"}
    (warning,) = logged.records
    assert "2 of 2 kernels are off here (100% of the expected gain)" in warning.getMessage()
    assert warning.getMessage().endswith(f"To use them: kforge cast recertify {path}")
    logged.clear()

    report = certified(path, settings)
    assert (report.certified, report.rejected, [e.state for e in report.entries]) == (True, False, ["certified"] * 2)
    package = load(path, settings=settings)
    assert states(package) == {"relu": "on", "abs": "on"}
    assert logged.records == []
    with torch.no_grad(), package.dispatch():
        assert torch.equal(torch.relu(x), x.clamp(min=0))
    assert {row.operator: row.hits for row in package.stats()} == {"relu": 1, "abs": 0}
    (entry, _) = package.package.entries
    assert entry.measured("eager")["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert entry.speedup == 2.0


def torch_here() -> str:
    return torch.__version__.split("+")[0]


def test_for_real_a_right_kernel_is_timed_and_a_wrong_one_stays_off_with_the_judges_reason(
    write: Write, settings: Settings
) -> None:
    path = write("wrong", "abs")
    report = certified(path, settings)
    outcomes = {e.label.split("-")[0]: e for e in report.entries}
    assert {name: e.state for name, e in outcomes.items()} == {"neg": "rejected", "abs": "certified"}
    assert report.rejected and report.certified
    # How a timing ends is the machine's business.
    assert isinstance(outcomes["abs"].speedups["eager"], Interval)
    record = open_standing(path, settings=settings).record
    assert record is not None
    known = next(e for e in record.entries.values() if e.verdict["verdict"] == "accepted")
    assert known.verdict["memory"] and isinstance(known.decisions["eager"], Use | Off)
    assert known.decisions["graphed"] == Off(reason="needs a CUDA device")
    found = states(load(path, settings=settings))
    assert not found["abs"].endswith("certify it again")
    assert re.match(r"rejected here: wrong_value: n0=\d+ .*elements are wrong", found["neg"]), found


@pytest.mark.usefixtures("quick")
def test_what_the_judge_could_not_judge_is_tried_again(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("abs")
    with monkeypatch.context() as patch:
        patch.setattr(FakeJudge, "certify", lambda *_, **__: WorkerFailure(detail="out of memory"))
        report = certified(path, settings)
    assert [(e.state, e.detail) for e in report.entries] == [("not judged", "out of memory")]
    assert not report.certified and not report.record
    assert certified(path, settings).certified


@pytest.mark.usefixtures("quick")
def test_a_kernel_that_the_audit_refuses_is_never_run(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recertifying, "audit_binary", lambda path, device: REFUSAL)
    monkeypatch.setattr(FakeJudge, "certify", lambda *_, **__: pytest.fail("it was run"))
    path = write("abs")
    certified(path, settings)
    assert "asks for dlopen" in states(load(path, settings=settings))["abs"]


@pytest.mark.usefixtures("quick")
def test_what_is_certified_here_is_not_judged_twice_unless_asked(
    write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("abs")
    certified(path, settings)
    made = json.loads(record_file(settings).read_text())["record"]["made"]
    assert certified(path, settings).seconds < 1.0
    assert json.loads(record_file(settings).read_text())["record"]["made"] == made
    certified(path, settings, again=True)
    assert json.loads(record_file(settings).read_text())["record"]["made"] > made


@pytest.mark.usefixtures("quick")
def test_what_was_finished_before_an_interruption_is_kept(
    write: Write, settings: Settings, entries: Mapping[str, Entry]
) -> None:
    path = write(replace(entries["relu"], share=0.9), "abs")
    asked: list[bool] = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) > 1

    said: list[str] = []
    report = recertify(path, settings=settings, say=said.append, should_stop=should_stop)
    # The one that promises more is done first.
    assert ({e.label.split("-")[0]: e.state for e in report.entries}, report.stopped) == (
        {"relu": "certified", "abs": "waiting"}, "stopped",
    )  # fmt: skip
    assert not report.certified
    assert states(load(path, settings=settings))["relu"] == "on"
    said.clear()
    report = recertify(path, settings=settings, say=said.append)
    assert report.certified and not any("relu" in line for line in said)
    assert set(states(load(path, settings=settings)).values()) == {"on"}


@pytest.mark.usefixtures("quick")
def test_time_that_is_spent_ends_it(write: Write, settings: Settings) -> None:
    report = certified(write("relu", "abs"), settings, max_time_s=0.0)
    assert (report.stopped, {e.state for e in report.entries}) == ("--max-time is spent", {"waiting"})


@pytest.mark.usefixtures("quick")
def test_progress_counts_and_estimates(write: Write, settings: Settings) -> None:
    said: list[str] = []
    recertify(write("relu", "abs"), settings=settings, say=said.append)
    assert said[0] == "building 2 checked forms of kernels"
    assert re.fullmatch(r"1/2 judging abs-\w{8}", said[1]), said
    assert any(re.fullmatch(r"2/2 judging relu-\w{8}, about \S+ left", line) for line in said), said


def test_a_package_of_unknown_origin_is_not_judged(write: Write, settings: Settings, tmp_path: Path) -> None:
    path = write("abs")
    stranger = replace(settings, config_dir=tmp_path / "stranger")
    with pytest.raises(UntrustedPackage):
        certified(path, stranger)
    with pytest.raises(UntrustedPackage):
        open_standing(path, settings=stranger)


# Records


@pytest.fixture
def recorded(write: Write, settings: Settings, quick: None) -> Path:
    """A package that is certified here; its record is `record_file(settings)`."""
    path = write("abs")
    certified(path, settings)
    assert states(load(path, settings=settings)) == {"abs": "on"}
    return path


def refused(path: Path, settings: Settings, logged: pytest.LogCaptureFixture) -> str:
    """Why the record was left out, when the package is loaded."""
    logged.clear()
    assert states(load(path, settings=settings))["abs"].endswith("certify it again")
    return logged.records[0].getMessage()


def test_a_record_is_for_its_owner_alone(recorded: Path, settings: Settings) -> None:
    path = record_file(settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_edited_record_does_not_count(recorded: Path, settings: Settings, logged: pytest.LogCaptureFixture) -> None:
    path = record_file(settings)
    document = json.loads(path.read_text())
    (entry,) = document["record"]["entries"].values()
    entry["decisions"]["compiled"] = None
    path.write_text(json.dumps(document))
    assert "it was edited" in refused(recorded, settings, logged)


def test_a_record_that_another_key_signed_does_not_count(
    recorded: Path, settings: Settings, logged: pytest.LogCaptureFixture
) -> None:
    from kernelforge.dispatch import records
    from kernelforge.package.signing import Signer

    path = record_file(settings)
    document = json.loads(path.read_text())
    signer = Signer.of(bytes(32))
    document["signer"] = signer.public_key
    document["signature"] = signer.sign(records._signed(document["record"])).hex()
    path.write_text(json.dumps(document))
    assert "another key signed it" in refused(recorded, settings, logged)


def test_a_record_of_another_package_does_not_count(
    recorded: Path, write: Write, settings: Settings, logged: pytest.LogCaptureFixture
) -> None:
    other = write("abs", name="other")
    digest = open_standing(other, settings=settings).package.digest
    record = record_file(settings)
    copied = settings.config_dir / "records" / digest / record.name
    copied.parent.mkdir(mode=0o700)
    copied.write_bytes(record.read_bytes())
    assert "it is of another package" in refused(other, settings, logged)
    assert states(load(recorded, settings=settings)) == {"abs": "on"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("torch", "2.3.0"), ("device_name", "another CPU"), ("device", "cuda"), ("capability", "sm_90")],
)
def test_a_record_for_another_environment_does_not_count(
    recorded: Path, settings: Settings, field: str, value: str, logged: pytest.LogCaptureFixture
) -> None:
    from kernelforge.dispatch.records import find_record, write_record

    standing = open_standing(recorded, settings=settings)
    assert standing.record is not None
    elsewhere = replace(standing.record, environment=replace(standing.environment, **{field: value}))
    ours = record_file(settings)
    ours.unlink()
    written = write_record(elsewhere, settings.config_dir)
    assert "it is for" in refused(recorded, settings, logged)
    # A machine finds its own among those of others with whom it shares the folder.
    write_record(standing.record, settings.config_dir)
    assert written != ours and written.exists()
    found = find_record(standing.package, standing.machine, settings.config_dir)
    assert found is not None and found.environment == standing.environment


def test_a_record_of_another_binary_does_not_count(recorded: Path, settings: Settings) -> None:
    from kernelforge.dispatch.records import write_record

    standing = open_standing(recorded, settings=settings)
    assert standing.record is not None
    ((variant, entry),) = standing.record.entries.items()
    other = {variant: replace(entry, binary="0" * 64)}
    write_record(replace(standing.record, entries=other), settings.config_dir)
    assert states(load(recorded, settings=settings))["abs"].endswith("certify it again")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"signer": 1}', "[" * 100_000, '{"record": {}}'])
def test_a_damaged_record_does_not_count(
    recorded: Path, settings: Settings, text: str, logged: pytest.LogCaptureFixture
) -> None:
    record_file(settings).write_text(text)
    assert "does not count" in refused(recorded, settings, logged)


def test_a_record_turns_off_what_the_package_wants(recorded: Path, settings: Settings) -> None:
    from kernelforge.dispatch.records import write_record

    standing = open_standing(recorded, settings=settings)
    assert standing.record is not None
    ((variant, entry),) = standing.record.entries.items()
    off = {variant: replace(entry, decisions={"eager": Off(reason="slower here")})}
    write_record(replace(standing.record, entries=off), settings.config_dir)
    assert states(load(recorded, settings=settings)) == {"abs": "slower here"}


# What is known without a capture


def test_sizes_come_from_what_was_timed(entries: Mapping[str, Entry]) -> None:
    entry = entries["abs"]
    record = record_of(entry)
    assert record is not None
    (point,) = record.points
    assert (point.dims, point.calls, point.eager_us) == ({"n0": 64}, 3, 40.5)
    # What the guard does not admit is not timed, as with what serves only larger sizes.
    larger = replace(entry, variant=replace(entry.variant, min_elements=128 * 64))
    record = record_of(larger)
    assert record is not None
    assert [larger.variant.admits_dims(p.dims) for p in record.points] == [True]


def test_sizes_are_made_up_where_none_were_timed(entries: Mapping[str, Entry]) -> None:
    record = record_of(replace(entries["abs"], measurement={"points": [{"dims": {"n0": "x"}}, 7], "modes": None}))
    assert record is not None and record.variant.admits_dims(record.points[0].dims)


# The command


def run_command(*arguments: object) -> tuple[int, str]:
    """Exit code and stdout."""
    result = CliRunner().invoke(make_app(), [str(a) for a in arguments])
    return result.exit_code, result.stdout


@pytest.fixture
def in_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_CONFIG_DIR", str(settings.config_dir))
    monkeypatch.setenv("KFORGE_CACHE_DIR", str(settings.cache_dir))


@pytest.mark.usefixtures("quick", "in_environment")
def test_the_command_and_its_exit_codes(write: Write, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("abs")
    with monkeypatch.context() as patch:
        patch.setattr(recertifying, "open_judge", lambda standing: pytest.fail("something was run"))
        code, text = run_command("cast", "recertify", path, "--check", "--json")
    document = json.loads(text)
    assert (code, document["certified"], document["entries"][0]["state"]) == (10, False, "waiting")
    code, text = run_command("cast", "recertify", path)
    assert code == 0 and "1 certified" in text
    assert run_command("cast", "recertify", path, "--check")[0] == 0
    assert run_command("cast", "recertify", write("abs", torch_version=torch_here(), name="h"), "--check")[0] == 0
    monkeypatch.setattr(recertifying, "audit_binary", lambda path, device: REFUSAL)
    other = write("abs", name="other")
    assert run_command("cast", "recertify", other, "-q")[0] == 4
    assert run_command("cast", "recertify", other, "--check", "-q")[0] == 4
    monkeypatch.setenv("KFORGE_CONFIG_DIR", str(settings.config_dir / "stranger"))
    assert run_command("cast", "recertify", path, "--check", "-q")[0] == 9
