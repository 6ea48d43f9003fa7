"""The composition root: wires the stages into a handful of verbs, typed in and out. Faces call nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernelforge import doctor
from kernelforge.errors import UsageError
from kernelforge.report.demo import DemoReport
from kernelforge.report.judgement import AuditReport, EvalReport, TrialReport
from kernelforge.report.library import LibraryKernelReport, LibraryReport, RemovedReport
from kernelforge.report.rows import (
    CaptureReport,
    CheckRow,
    DoctorLine,
    ExportReport,
    ForgeReport,
    OperatorRow,
    PackageReport,
    RunReport,
    TransferReport,
    VariantReport,
)
from kernelforge.report.units import parse_duration
from kernelforge.search.types import Budget
from kernelforge.settings import Settings, load_settings

if TYPE_CHECKING:
    from kernelforge.capture.models import ModelOptions
    from kernelforge.capturing import Shapes
    from kernelforge.optimized import OptimizedModel
    from kernelforge.report.asking import AskReport, NextOrder, StatusReport, TellReport, VerdictReport, WorkOrder
    from kernelforge.report.certified import RecertifyReport
    from kernelforge.report.costs import CostKey, CostReport
    from kernelforge.report.logs import LogPhase, LogReport
    from kernelforge.report.package_run import PackageRunReport
    from kernelforge.report.plan import PlanReport
    from kernelforge.report.profiles import ProfileReport
    from kernelforge.report.replay import ReplayReport
    from kernelforge.report.runs import RunRow
    from kernelforge.report.trees import DiffReport, TreeReport
    from kernelforge.report.trust import KeysReport, TrustReport
    from kernelforge.running import Followed
    from kernelforge.search.events import Event
    from kernelforge.search.types import SearchSummary
    from kernelforge.store.project import Project
    from kernelforge.supervisor.types import Run
    from kernelforge.telling import Opener

OnEvent = Callable[["Event | str"], None]
ShouldStop = Callable[[], bool]


def _ignore(event: object) -> None:
    """The default listener."""


def _never() -> bool:
    return False


def capture(
    model: Callable[..., Any],
    args: object = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    project: str | Path,
    samples: Sequence[object] | None = None,
    name: str = "",
    device: str = "",
    shapes: Shapes = "auto",
    repeats: int | None = None,
    overwrite: bool = False,
) -> CaptureReport:
    """Run an unmodified model and record its operator calls in a project.

    Args:
        model: any callable: a module, `model.generate`, a pipeline.
        args, kwargs: one set of inputs; or `samples`, several (tuples of arguments, or mappings of keyword ones).
            Sizes that differ between the samples become named dims, so give samples of different sizes.
        project: the folder to write.
        shapes: "auto" merges calls that differ only in sizes; "exact" makes one variant of each.
        repeats: runs that are made only to time the calls; None for a few, as many as fit into a second.

    Raises:
        ModelError: the model raised. UsageError: there is already a project, and `overwrite` is off; or the model is
            no callable.
    """
    from kernelforge.capturing import capture_calls, device_of, present_device, python_calls

    _require_callable(model)
    if overwrite:
        _refuse_if_searched(Path(project))
    calls = python_calls(model, args, kwargs, samples)
    first = samples[0] if samples else args
    found = (
        present_device(device) if device else device_of(model, first if isinstance(first, list | tuple) else (first,))
    )
    try:
        return capture_calls(
            calls, model=name or type(model).__name__, device=found, project=Path(project), shapes=shapes,
            repeats=repeats, overwrite=overwrite,
        )  # fmt: skip
    except UsageError as error:  # the hint is in the words of the command line
        raise UsageError(error.message, hint=error.hint.replace("--overwrite", "overwrite=True")) from None


def _require_callable(model: object) -> None:
    """Refuse the name of a model, which only the command line loads."""
    if callable(model):
        return
    if isinstance(model, str | Path):
        raise UsageError(
            f"a callable is wanted, for example a torch.nn.Module, not the name {str(model)!r}",
            hint=f"load the model first, or capture it from the command line: kforge capture {model}",
        )
    raise UsageError(
        f"a callable is wanted, not a {type(model).__name__}", hint="give a module, a function or a bound method"
    )


def capture_source(
    source: str,
    *,
    project: Path,
    device: str | None = None,
    dtype: str | None = None,
    samples: int = 1,
    random_weights: bool = False,
    shapes: Shapes = "auto",
    repeats: int | None = None,
    overwrite: bool = False,
) -> CaptureReport:
    """Capture a model named on the command line.

    Raises:
        ModelError: it cannot be loaded or run. EnvironmentMissing: CUDA was asked for without a GPU.
    """
    from kernelforge.capture.models import load_model
    from kernelforge.capturing import capture_calls, present_device, source_fingerprint

    if overwrite:
        _refuse_if_searched(project)
    options = _options(device, dtype=dtype, samples=samples, random_weights=random_weights)
    loaded = load_model(source, options)
    return capture_calls(
        loaded.calls, model=loaded.name, device=present_device(options.device), project=project, shapes=shapes,
        repeats=repeats, overwrite=overwrite, source=source, fingerprint=source_fingerprint(source, options),
    )  # fmt: skip


def list_operators(project: Path) -> list[OperatorRow]:
    """The operator table of a project, largest share first.

    Raises:
        NotFound: no project there. SchemaTooNew: a newer kernelforge wrote it.
    """
    from kernelforge.report.operators import project_rows
    from kernelforge.store.project import Project

    return list(project_rows(Project.open(project)))


def show_variant(project: Path, prefix: str) -> VariantReport:
    """One variant with its dims and trials.

    Raises:
        NotFound: no variant, or several, are called so.
    """
    from kernelforge.report.operators import variant_report
    from kernelforge.search.winners import choose_winner
    from kernelforge.store.project import Project

    opened = Project.open(project)
    record = opened.record(prefix)
    nodes = opened.nodes(record.variant.id)
    return variant_report(choose_winner(record, nodes), nodes, opened.decisions().get(record.variant.id))


def show_trial(project: Path, prefix: str, trial: str) -> TrialReport:
    """One stored trial of a variant, explained.

    Args:
        trial: its number, or a unique prefix of its node's id.

    Raises:
        NotFound: no such variant or trial.
    """
    from kernelforge.report.evaluation import trial_report
    from kernelforge.search.winners import find_node
    from kernelforge.store.project import Project

    opened = Project.open(project)
    record = opened.record(prefix)
    node = find_node(record, opened.nodes(record.variant.id), trial)
    return trial_report(node, record, opened.profile_of(node))


def variant_tree(project: Path, prefix: str) -> TreeReport:
    """All trials of a variant, each below the one that it revises.

    Raises:
        NotFound: no variant, or several, are called so.
    """
    from kernelforge.report.trees import tree_report
    from kernelforge.store.project import Project

    opened = Project.open(project)
    record = opened.record(prefix)
    return tree_report(record, opened.nodes(record.variant.id))


def diff_trials(project: Path, prefix: str, node: str, other: str = "") -> DiffReport:
    """What a trial's source changes in that of another.

    Args:
        node, other: a trial's number, or a unique prefix of its node's id. Without `other` the one that it mends or
            revises.

    Raises:
        NotFound: no such variant or trial.
    """
    from kernelforge.report.trees import diff_report
    from kernelforge.search.lineage import attempts_at
    from kernelforge.search.winners import find_node
    from kernelforge.store.project import Project

    opened = Project.open(project)
    record = opened.record(prefix)
    nodes = opened.nodes(record.variant.id)
    new = find_node(record, nodes, node)
    before = attempts_at(new, nodes)[:-1] or [n for n in nodes if n.id == new.parent]
    old = find_node(record, nodes, other) if other else next(iter(reversed(before)), None)
    return diff_report(record, old, new)


def trial_log(project: Path, prefix: str, trial: str, *, phase: LogPhase | None = None) -> LogReport:
    """What happened to a trial, in the order in which it happened.

    Args:
        trial: its number, or a unique prefix of its node's id. phase: only that part of it.

    Raises:
        NotFound: no such variant or trial.
    """
    from kernelforge.report.logs import log_report
    from kernelforge.search.winners import find_node
    from kernelforge.store.project import Project

    opened = Project.open(project)
    record = opened.record(prefix)
    nodes, orders = opened.nodes(record.variant.id), opened.orders(closed=True)
    node = find_node(record, nodes, trial)
    calls = [call for order in orders if order.node == node.id for call in opened.calls(order=order.id)]
    return log_report(record, nodes, node, orders, calls=calls, phase=phase)


def replay_recording(file: Path) -> ReplayReport:
    """Run a recorded search again, without its language model, and compare.

    Raises:
        NotFound: no such file. ProjectError: it is damaged. ReplayDiffers: something is not as it was recorded.
    """
    from kernelforge.replaying import replay_file

    return replay_file(file)


def show_cost(project: Path, *, by: CostKey = "run") -> CostReport:
    """What language models cost, by operator, model, run or step.

    Raises:
        NotFound: no such project. ProjectError: a call is damaged.
    """
    from kernelforge.report.costs import cost_report
    from kernelforge.store.project import Project

    opened = Project.open(project)
    operators = {r.variant.id: card.operator for card in opened.cards() for r in card.variants}
    return cost_report(opened.calls(texts=False), operators, by=by)


def pack_project(project: Path, output: Path, *, examples: bool = False) -> TransferReport:
    """Write a project into one file.

    Raises:
        ProjectError: it is damaged, or the file cannot be written.
    """
    from kernelforge.store.archive import pack_project as pack
    from kernelforge.store.project import Project

    opened = Project.open(project)
    trials = pack(opened, output, examples=examples)
    return TransferReport(path=str(output), trials=trials, calls=len(opened.calls(texts=False)))


def unpack_project(file: Path, project: Path, *, overwrite: bool = False) -> TransferReport:
    """Make a project of a packed file.

    Raises:
        NotFound: no such file. UsageError: something stands at `project`. ProjectError: the file is damaged.
    """
    from kernelforge.store.archive import unpack_project as unpack

    if overwrite:
        _refuse_if_searched(project)
    opened = unpack(file, project, overwrite=overwrite)
    return TransferReport(path=str(project), trials=len(opened.stored_trials()))


def merge_project(project: Path, other: Path) -> TransferReport:
    """Add the trials of another copy of a project, a folder or a packed file.

    Raises:
        NotFound: one of them is not there. UsageError: they are of different captures. ProjectError: one is damaged.
    """
    from kernelforge.store.archive import merge_project as merge
    from kernelforge.store.project import Project

    merged = merge(Project.open(project), other)
    return TransferReport(
        path=str(project), trials=merged.trials, known=merged.known, by_variant=merged.by_variant
    )  # fmt: skip


def audit_node(project: Path, node: str, *, variant: str = "", settings: Settings | None = None) -> AuditReport:
    """Who really does the work of a stored node: label and evidence, the binary audited again, and the ablation.

    Args:
        node: a unique prefix of its id; with `variant` also its number.

    Raises:
        NotFound: no such project or node. ProjectError: the stored binary is damaged.
    """
    from kernelforge.auditing import audit_node as audit
    from kernelforge.store.project import Project

    return audit(Project.open(project), node, variant=variant, settings=settings or load_settings())


def profile_trials(
    project: Path,
    prefix: str,
    trials: Sequence[str] = (),
    *,
    again: bool = False,
    on_event: OnEvent = _ignore,
    settings: Settings | None = None,
) -> ProfileReport:
    """What limits stored kernels, by the GPU's profiler; that there is none is told and no error.

    Args:
        trials: numbers, or unique prefixes of their nodes' ids; by default the best one.
        again: measure also what is known.

    Raises:
        NotFound: no such variant or trial, or none is accepted. ProjectError: a stored binary is damaged.
    """
    from kernelforge.profiling import profile_trials as profile
    from kernelforge.store.project import Project

    return profile(
        Project.open(project), prefix, trials, again=again, on_event=on_event, settings=settings or load_settings()
    )


def forge_project(
    project: Path,
    *,
    operators: Sequence[str] = (),
    budget: Budget,
    generator: str = "template",
    strategy: str = "",
    policy: str = "gain",
    library: bool = True,
    record: Path | None = None,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> ForgeReport:
    """Search for faster kernels. Every finished trial is stored at once; the same call resumes.

    Args:
        operators: operator names, labels or id prefixes; empty for all variants.
        generator: "template", "llm:PROVIDER/MODEL", or "replay:FILE" for the kernels of a recording.
        strategy: which node is revised next ("best-first", "paper-mcts", ...); "" for the generator's default.
        policy: which variant gets the next trial: "gain", where it can win most, or "uniform", each as many.
        library: try the kernels of this machine's library first, unless the settings switch it off.
        record: write a language model's search to this file, one proposal at a time, for `replay_recording`.

    Raises:
        NotFound: a name fits no variant, generator, strategy or policy. EnvironmentMissing: no compiler, no GPU, or no
            key of the language model.
        UsageError: the budget limits what the generator does not tell the cost of.
    """
    from kernelforge.report.operators import project_rows
    from kernelforge.store.project import Project
    from kernelforge.workshop import open_workshop

    opened = Project.open(project)
    records = _select(opened, operators)
    with open_workshop(opened.device, _with_library(settings or load_settings(), library)) as workshop:
        summary = workshop.search(
            opened, records, budget, generator=generator, strategy=strategy, policy=policy, record=record,
            on_event=on_event, should_stop=should_stop,
        )  # fmt: skip
    chosen = {r.variant.id for r in records}
    rows = tuple(row for row in project_rows(opened) if row.variant in chosen)
    return ForgeReport(
        rows=rows, trials=summary.trials, seconds=summary.seconds, stopped=summary.stopped, tokens=summary.tokens,
        usd=summary.usd, busy_s={str(lane): busy_s for lane, busy_s in summary.busy_s.items()},
    )  # fmt: skip


def start_run(
    project: Path,
    *,
    operators: Sequence[str] = (),
    budget: Budget,
    generator: str = "template",
    strategy: str = "",
    policy: str = "gain",
    library: bool = True,
    devices: str = "",
) -> RunRow:
    """`forge_project` in the background: returns at once. See docs/runs.md.

    Args:
        devices: "" for the project's device, else "all" or GPUs by their indices, "0,1", with one worker each.

    Raises:
        NotFound: as `forge_project`. UsageError, EnvironmentMissing: `devices` are not to be had.
    """
    from kernelforge.proposing import check_generator
    from kernelforge.report.runs import run_row
    from kernelforge.running import start_run as start
    from kernelforge.search.scheduler import get_policy
    from kernelforge.search.strategies import get_strategy
    from kernelforge.store.project import Project
    from kernelforge.supervisor.types import Run

    opened = Project.open(project)
    # What is misspelt is said here, and not in the log of a process.
    _select(opened, operators)
    check_generator(generator, load_settings())
    get_policy(policy)
    if strategy:
        get_strategy(strategy)
    run = Run(
        id="", created=time.time(), budget=budget, operators=tuple(operators), generator=generator, strategy=strategy,
        policy=policy, library=library,
    )  # fmt: skip
    return run_row(start(opened, run=run, devices=devices).status())


def work_on_run(folder: Path, worker: int, *, should_stop: ShouldStop = _never) -> None:
    """What the process of a run does, until the run ends.

    Raises:
        ForgeError: as `forge_project`; it is written down in the run's folder first.
    """
    from kernelforge.store.project import Project
    from kernelforge.supervisor.folder import RunFolder
    from kernelforge.supervisor.worker import work
    from kernelforge.workshop import open_workshop

    run_folder = RunFolder(folder)

    def search(
        run: Run, budget: Budget, *, on_event: OnEvent, should_stop: ShouldStop, should_pause: ShouldStop
    ) -> SearchSummary:
        opened = Project.open(run_folder.project)
        with open_workshop(opened.device, _with_library(load_settings(), run.library)) as workshop:
            # The account of calls goes on from one process of the worker to the next.
            return workshop.search(
                opened, _select(opened, run.operators), budget, generator=run.generator, strategy=run.strategy,
                policy=run.policy, run=f"{run.id}/{worker}", run_budget=run.share(worker), on_event=on_event,
                should_stop=should_stop, should_pause=should_pause,
            )  # fmt: skip

    work(run_folder, worker, search, should_stop=should_stop)


def list_runs(projects: Sequence[Path]) -> list[RunRow]:
    """The detached runs of some projects, oldest first.

    Raises:
        NotFound: one of them is no project.
    """
    from kernelforge.report.runs import run_row
    from kernelforge.store.project import require_project
    from kernelforge.supervisor.folder import runs_of

    for project in projects:
        if not project.exists():
            require_project(project)
    return [run_row(folder.status()) for folder in runs_of(projects)]


def follow_run(
    projects: Sequence[Path],
    run: str,
    *,
    on_event: OnEvent,
    on_past: OnEvent = _ignore,
    should_leave: ShouldStop = _never,
) -> Followed:
    """Pass on what happens in a run until it ends, or `should_leave`; it goes on all the same.

    Args:
        run: a unique prefix of its id, or "latest". on_past: given what happened before, but for the last trials.

    Raises:
        NotFound: no such run. ForgeError: it failed, or died.
    """
    from kernelforge.running import follow_run as follow
    from kernelforge.supervisor.folder import find_run

    return follow(
        find_run(projects, run), select=_select, on_event=on_event, on_past=on_past, should_leave=should_leave
    )


def control_run(projects: Sequence[Path], run: str, wish: Literal["pause", "resume", "stop", "cancel"]) -> RunRow:
    """Tell a run what to do; how it stands then. See docs/runs.md.

    Args:
        run: a unique prefix of its id, or "latest".

    Raises:
        NotFound: no such run. UsageError: it has ended, or has nothing left to do.
    """
    from kernelforge.report.runs import run_row
    from kernelforge.supervisor import control
    from kernelforge.supervisor.folder import find_run

    verbs = {"pause": control.pause, "resume": control.resume, "stop": control.stop, "cancel": control.cancel}
    return run_row(verbs[wish](find_run(projects, run)))


def plan_forge(
    project: Path,
    *,
    operators: Sequence[str] = (),
    budget: Budget,
    generator: str = "template",
    policy: str = "gain",
    library: bool = True,
    settings: Settings | None = None,
) -> PlanReport:
    """What `forge_project` would spend the budget on, and what the model may gain. Judges and stores nothing.

    Raises:
        NotFound: a name fits no variant or policy.
    """
    from kernelforge.planning import make_plan
    from kernelforge.store.project import Project

    opened = Project.open(project)
    return make_plan(
        opened, _select(opened, operators), budget, generator=generator, policy=policy,
        settings=_with_library(settings or load_settings(), library),
    )  # fmt: skip


def ask_orders(
    project: Path,
    *,
    operators: Sequence[str] = (),
    output: Path,
    count: int = 1,
    parent: str = "",
    strategy: str = "",
    policy: str = "gain",
    settings: Settings | None = None,
) -> AskReport:
    """Write work orders as folders, for a coding agent or a person.

    Args:
        parent: what is to be revised: a trial's number, or a unique prefix of its node's id; "" leaves it to the
            strategy.

    Raises:
        NotFound: a name fits no variant, node, strategy or policy. UsageError: a parent without exactly one variant, or
            one that is not valid; or `output` cannot be written to.
    """
    from kernelforge.asking import ask_orders as ask
    from kernelforge.store.project import Project

    opened = Project.open(project)
    return ask(
        opened, _select(opened, operators), output, count=count, parent=parent, strategy=strategy, policy=policy,
        settings=settings or load_settings(),
    )  # fmt: skip


def next_order(
    project: Path,
    *,
    operators: Sequence[str] = (),
    parent: str = "",
    strategy: str = "",
    policy: str = "gain",
    settings: Settings | None = None,
) -> NextOrder:
    """One work order with its texts, if a variant has use for one; the arguments are those of `ask_orders`.

    Raises:
        NotFound, UsageError: as `ask_orders`.
    """
    from kernelforge.asking import next_order as ask
    from kernelforge.store.project import Project

    opened = Project.open(project)
    return ask(
        opened, _select(opened, operators), parent=parent, strategy=strategy, policy=policy,
        settings=settings or load_settings(),
    )  # fmt: skip


def order_context(project: Path, *, order: str = "", variant: str = "", settings: Settings | None = None) -> WorkOrder:
    """An order's texts as they are now; or, given a variant, what an order that revises its best kernel would say.

    Raises:
        NotFound: no such order or variant. UsageError: none is named, or both.
    """
    from kernelforge.asking import order_context as context
    from kernelforge.store.project import Project

    return context(Project.open(project), order=order, variant=variant, settings=settings or load_settings())


def tell_orders(
    project: Path,
    folders: Sequence[Path],
    *,
    model: str = "",
    profile: bool = False,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> TellReport:
    """Judge what was written into the folders of work orders, and put the verdicts beside it.

    Args:
        profile: measure the accepted ones with the GPU's profiler, for their verdicts.

    Raises:
        NotFound: there is no order. EnvironmentMissing: no compiler, or no GPU. ProjectError: an order is damaged.
    """
    from kernelforge.store.project import Project
    from kernelforge.telling import tell_orders as tell

    return tell(
        Project.open(project), folders, model=model, profile=profile, on_event=on_event, should_stop=should_stop,
        settings=settings or load_settings(),
    )  # fmt: skip


def submit_source(
    project: Path,
    order: str,
    source: str,
    *,
    notes: str = "",
    model: str = "",
    opener: Opener | None = None,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> VerdictReport:
    """Judge one text as the kernel of a work order, and store the trial.

    Args:
        opener: of the workshop, for who keeps one open (`keeping.KeptWorkshop`); on_event is told of the phases.

    Raises:
        NotFound: no such order. UsageError: the source is none, or known. EnvironmentMissing: no compiler, or no GPU.
        Stopped: `should_stop` said so between two phases; the order keeps the kernel.
    """
    from kernelforge.store.project import Project
    from kernelforge.telling import judge_source
    from kernelforge.workshop import open_workshop

    return judge_source(
        Project.open(project), order, source, notes=notes, model=model, opener=opener or open_workshop,
        on_event=on_event, should_stop=should_stop, settings=settings or load_settings(),
    )  # fmt: skip


def order_verdict(project: Path, *, order: str = "", variant: str = "", trial: str = "") -> VerdictReport:
    """The verdict on what was delivered for an order, or that on a trial of a variant.

    Raises:
        NotFound: no such order, variant or trial. UsageError: neither is named, or both.
    """
    from kernelforge.store.project import Project
    from kernelforge.telling import order_verdict as verdict

    return verdict(Project.open(project), order=order, variant=variant, trial=trial)


def project_status(project: Path) -> StatusReport:
    """How a project stands: its variants with the best kernels, and the orders under way.

    Raises:
        NotFound: no project there.
    """
    from kernelforge.report.operators import project_status as status
    from kernelforge.store.project import Project

    return status(Project.open(project))


def add_files(
    project: Path,
    files: Sequence[Path],
    *,
    variant: str,
    parent: str = "",
    notes: str = "",
    judge: bool = True,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> TellReport:
    """Put source files into a variant's revision tree, judged like every other candidate.

    Args:
        parent: what they revise: a trial's number, or a unique prefix of its node's id. judge: now; else the next
            search judges them first.

    Raises:
        NotFound: a file, the project, the variant or the parent does not exist. UsageError: see `adding.add_files`.
    """
    from kernelforge.adding import add_files as add
    from kernelforge.store.project import Project

    return add(
        Project.open(project), files, variant=variant, parent=parent, notes=notes, judge=judge, on_event=on_event,
        should_stop=should_stop, settings=settings or load_settings(),
    )  # fmt: skip


def add_folder(
    project: Path,
    folder: Path,
    *,
    judge: bool = True,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> TellReport:
    """Put the kernels of a folder in the original system's layout into the trees of their operators' variants.

    Raises:
        NotFound: no such project, or no kernel in the folder.
    """
    from kernelforge.adding import add_folder as add
    from kernelforge.store.project import Project

    return add(
        Project.open(project), folder, judge=judge, on_event=on_event, should_stop=should_stop,
        settings=settings or load_settings(),
    )  # fmt: skip


def evaluate_file(
    source: Path,
    *,
    project: Path,
    variant: str,
    certify: bool = False,
    paper: bool = False,
    settings: Settings | None = None,
) -> EvalReport:
    """Judge one source file as a candidate for a variant; the trial is stored like every other.

    Args:
        certify: after the gate also the complete certificate. paper: beside ours the original paper's protocol.

    Raises:
        NotFound: the file, the project or the variant does not exist.
    """
    from kernelforge.judging import judge_file
    from kernelforge.store.project import Project

    return judge_file(
        source, Project.open(project), variant=variant, certify=certify, paper=paper,
        settings=settings or load_settings(),
    )  # fmt: skip


def export_project(
    project: Path,
    *,
    output: Path,
    picks: Mapping[str, str] | None = None,
    allow_unchecked: bool = False,
    modes: Sequence[str] | None = None,
    on_event: OnEvent = _ignore,
    settings: Settings | None = None,
) -> ExportReport:
    """Certify the winners and write them as a package.

    Args:
        picks: variant -> node, by hand; every other variant by the policy auto_best_fastest_valid.
        allow_unchecked: export kernels also where this machine cannot check their memory; the header names them.
        modes: of dispatch, in which kernels are timed and may be used: "eager", "graphed", "compiled". By default
            those in which the package that `output` replaces was timed; of a new one eager, and graphed on a GPU.
            Compiled costs tens of seconds for each kernel.

    Raises:
        UsageError: a pick is not valid, or a mode unknown. PackageError: the package cannot be written.
    """
    from kernelforge.exporting import export
    from kernelforge.mode_timing import modes_before
    from kernelforge.store.project import Project
    from kernelforge.workshop import open_workshop

    opened = Project.open(project)
    modes = modes or modes_before(output)
    with open_workshop(opened.device, settings or load_settings()) as workshop:
        exported = export(
            opened, output, workshop=workshop, picks=picks, allow_unchecked=allow_unchecked, modes=modes, say=on_event
        )
    return exported.report


def recertify_package(
    path: Path,
    *,
    trust: str | Collection[str] = (),
    modes: Sequence[str] | None = None,
    again: bool = False,
    max_time_s: float | None = None,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
    settings: Settings | None = None,
) -> RecertifyReport:
    """Judge and time the entries of a package on this machine, without a search, and keep the result for `load`.

    Args:
        trust: as of `load`. modes: to time; by default those in which an entry was timed before.
        again: also what is certified here already. max_time_s: begin no entry after so long.

    Raises:
        UntrustedPackage: nobody here has said to trust it. EnvironmentMissing: no GPU or no compiler for the judge's
        runner.
    """
    from kernelforge.recertifying import recertify

    return recertify(
        path, settings=settings or load_settings(), trust=trust, modes=modes, again=again, max_time_s=max_time_s,
        say=on_event, should_stop=should_stop,
    )  # fmt: skip


def certification_of(
    path: Path, *, trust: str | Collection[str] = (), settings: Settings | None = None
) -> RecertifyReport:  # fmt: skip
    """Whether the entries of a package are certified for this machine. Loads and runs nothing of it.

    Raises:
        UntrustedPackage: nobody here has said to trust it. EnvironmentMissing: it is for a GPU, and there is none.
    """
    from kernelforge.standing import open_standing

    return open_standing(path, settings=settings or load_settings(), trust=trust).report()


def run_with_package(
    path: Path,
    source: str,
    *,
    trust: str | Collection[str] = (),
    ways: Sequence[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    samples: int = 1,
    random_weights: bool = False,
    max_time_s: float | None = None,
    on_event: OnEvent = _ignore,
    settings: Settings | None = None,
) -> PackageRunReport:
    """Compare a model named on the command line with and without a package: outputs, and times in pairs.

    Args:
        trust: as of `load`. ways: to run the model, of "eager", "graphed", "compiled", "reduce-overhead"; by default
            eager, and graphed on a GPU.
        max_time_s: of the comparisons together.

    Raises:
        UntrustedPackage: nobody here has said to trust it. ModelError: the model cannot be loaded, or raises.
        EnvironmentMissing: CUDA was asked for without a GPU.
    """
    from kernelforge.package_run import run_package

    options = _options(device, dtype=dtype, samples=samples, random_weights=random_weights)
    return run_package(
        path, source, options=options, settings=settings or load_settings(), ways=ways, trust=trust,
        max_time_s=max_time_s, say=on_event,
    )  # fmt: skip


def inspect_package(path: Path, *, settings: Settings | None = None) -> PackageReport:
    """What is in a package, by whom it is signed, and whether it may be loaded here. Loads none of it.

    Raises:
        PackageError: it is corrupt, truncated, edited or of a newer format.
    """
    from kernelforge.package.reader import read_package
    from kernelforge.package.trust import trust_of
    from kernelforge.report.packages import package_report

    package = read_package(path)
    trust = trust_of(package, settings or load_settings())
    return package_report(package, path=str(path), size_bytes=path.stat().st_size, checks=(), trust=trust)


def verify_package(path: Path, *, settings: Settings | None = None) -> PackageReport:
    """Check a package: its integrity, and whether each entry could be on in this process. Loads none of it.

    Raises:
        PackageError: it is corrupt, truncated, edited or of a newer format.
    """
    from kernelforge.dispatch.loading import reasons_off
    from kernelforge.package.reader import read_package
    from kernelforge.package.trust import trust_of
    from kernelforge.package.types import MODES, Use
    from kernelforge.report.packages import package_report

    settings = settings or load_settings()
    package = read_package(path)
    checks = [CheckRow(name="integrity", ok=True, detail="every entry is listed and has its checksum")]
    here, off = reasons_off(package, settings)
    for entry in here.entries:
        reasons = off[entry.variant.id]
        wanted = [mode for mode in MODES if isinstance(entry.decision(mode), Use)]
        on = [mode for mode in wanted if mode not in reasons]
        # An entry that the package, or this machine's own record of it, decided against is off, and that is no fault.
        state = "on" if on else reasons[wanted[0] if wanted else MODES[0]]
        detail = f"{entry.variant.operator}: {state}"
        checks.append(CheckRow(name=entry.variant.id[:8], ok=bool(on) or not wanted, detail=detail))
    return package_report(
        package, path=str(path), size_bytes=path.stat().st_size, checks=tuple(checks), trust=trust_of(package, settings)
    )


def trust_package(report: PackageReport, *, signer: bool = False, settings: Settings | None = None) -> TrustReport:
    """Trust a package that was looked at, from now on: this very file, or whatever its signer signs.

    Args:
        report: of `inspect_package`: what was shown is what is trusted, also if the file has changed since.
        signer: trust the key that signed it, instead of the file.

    Raises:
        UsageError: nobody signed it. ForgeError: the list of what is trusted cannot be read or written.
    """
    from kernelforge.package.trust import trust_hash
    from kernelforge.report.trust import TrustReport

    config_dir = (settings or load_settings()).config_dir
    if not signer:
        trust_hash(config_dir, report.digest, Path(report.path).name)
        return TrustReport(hashes=(report.digest,), trusted=True)
    if not report.signer:
        raise UsageError(f"nobody signed {report.path}", hint="trust the file itself")
    return pin_signer(report.signer, name=Path(report.path).name, settings=settings)


def pin_signer(key: str, *, name: str = "", settings: Settings | None = None) -> TrustReport:
    """Trust whatever this key signs, from now on. name: for people.

    Raises:
        UsageError: it is no public key. ForgeError: the list of what is trusted cannot be read or written.
    """
    from kernelforge.package.trust import pin_key
    from kernelforge.report.trust import TrustReport

    pin_key((settings or load_settings()).config_dir, key, name)
    return TrustReport(keys=(key,), trusted=True)


def distrust(what: str, *, settings: Settings | None = None) -> TrustReport:
    """Trust a key, a file or a hash no more.

    Args:
        what: a public key or its fingerprint, "sha256:" and a digest, or the path of a package: its hash, not its key.

    Raises:
        NotFound: nothing such is trusted. ForgeError: the list of what is trusted cannot be read or written.
    """
    from kernelforge.package.trust import distrust as take_off
    from kernelforge.package.trust import named_in
    from kernelforge.report.trust import TrustReport

    config_dir = (settings or load_settings()).config_dir
    keys, hashes = named_in(config_dir, what)
    take_off(config_dir, keys=keys, hashes=hashes)
    return TrustReport(keys=keys, hashes=hashes, trusted=False)


def trusted_keys(*, settings: Settings | None = None) -> KeysReport:
    """This machine's key, the pinned keys and the trusted files.

    Raises:
        EnvironmentMissing: a key or the list is damaged, or others can get at it. ForgeError: it cannot be read.
    """
    from kernelforge.package.signing import local_public_key
    from kernelforge.package.trust import read_trusted
    from kernelforge.report.trust import KeysReport

    config_dir = (settings or load_settings()).config_dir
    trusted = read_trusted(config_dir)
    return KeysReport(
        folder=str(config_dir), local=local_public_key(config_dir), keys=trusted.keys, hashes=trusted.hashes
    )


def optimize(
    model: Callable[..., Any],
    inputs: object,
    *,
    max_time: str | float = "3m",
    project: str | Path | None = None,
    output: str | Path | None = None,
    allow_unchecked: bool = False,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
) -> OptimizedModel:
    """Make a model faster: capture, forge, certify, export, load. Anytime: it returns the best found so far.

    Inference only: everything runs without gradients, and calls that need gradients run the original operators.

    Args:
        inputs: a tuple of positional arguments, one tensor, or a list of such samples. Samples of different sizes
            make kernels that serve all sizes in between.
        max_time: for everything, "90s", "3m", or seconds.
        project, output: where to keep the project and the package; by default a temporary folder.
        allow_unchecked: use kernels also where this machine cannot check their memory.

    Raises:
        UsageError: the model is in training mode. ModelError: it raised.

    Returns:
        A callable like the model. Its `rows` and `whole_model` say what was won and what was not.
    """
    from kernelforge.pipeline import optimize_model

    _require_callable(model)
    limit = parse_duration(max_time) if isinstance(max_time, str) else float(max_time)
    samples = inputs if isinstance(inputs, list) else [inputs]
    return optimize_model(
        model, samples, max_time_s=limit, project=project, output=output, on_event=on_event, should_stop=should_stop,
        allow_unchecked=allow_unchecked,
    )  # fmt: skip


def run_source(
    source: str,
    *,
    output: Path,
    max_time_s: float | None,
    project: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    samples: int = 1,
    random_weights: bool = False,
    allow_unchecked: bool = False,
    library: bool = True,
    on_event: OnEvent = _ignore,
    should_stop: ShouldStop = _never,
) -> RunReport:
    """Everything in one verb for a model named on the command line. A project that exists is resumed.

    Args:
        library: try the kernels of this machine's library first, and keep those that are used there.
        allow_unchecked: export kernels also where this machine cannot check their memory.

    Raises:
        ModelError, EnvironmentMissing, ProjectError, PackageError: as the verbs that it joins.
    """
    from kernelforge.capture.models import load_model
    from kernelforge.capturing import present_device, source_fingerprint
    from kernelforge.pipeline import run_pipeline

    options = _options(device, dtype=dtype, samples=samples, random_weights=random_weights)
    loaded = load_model(source, options)
    fingerprint = source_fingerprint(source, options)
    folder = project or Path(f"{loaded.name}.kforge")
    return run_pipeline(
        loaded, device=present_device(options.device), project=folder, output=output, max_time_s=max_time_s,
        on_event=on_event, should_stop=should_stop, source=source, fingerprint=fingerprint,
        allow_unchecked=allow_unchecked, library=library,
    ).report  # fmt: skip


def demo(
    *,
    max_time_s: float | None = None,
    work_dir: Path | None = None,
    device: str | None = None,
    on_event: OnEvent = _ignore,
) -> DemoReport:
    """The whole system on a ResNet-50 and a small Qwen3-like decoder, on this machine."""
    from kernelforge.demo import run_demo

    return run_demo(max_time_s=max_time_s, work_dir=work_dir, device=device, on_event=on_event)


def list_library(settings: Settings | None = None) -> LibraryReport:
    """The certified kernels that are kept on this machine."""
    from kernelforge.library.folder import Library
    from kernelforge.report.library import library_report

    chosen = settings or load_settings()
    return library_report(Library(chosen.library_dir), enabled=chosen.library)


def show_library_kernel(prefix: str, *, settings: Settings | None = None) -> LibraryKernelReport:
    """One kernel of the library with its source.

    Raises:
        NotFound: no kernel's id, or several, start so. ProjectError: its file is damaged.
    """
    from kernelforge.library.folder import Library
    from kernelforge.report.library import kernel_report

    return kernel_report(Library((settings or load_settings()).library_dir).find(prefix))


def remove_library_kernels(prefixes: Sequence[str], *, settings: Settings | None = None) -> RemovedReport:
    """Remove kernels of the library, also damaged ones; without `prefixes` all.

    Raises:
        NotFound: no kernel's id, or several, start so; nothing is removed. ProjectError: the library is not writable.
    """
    from kernelforge.library.folder import Library

    library = Library((settings or load_settings()).library_dir)
    removed = library.remove(prefixes) if prefixes else library.clear()
    return RemovedReport(path=str(library.folder), removed=removed)


def diagnose(settings: Settings | None = None) -> list[DoctorLine]:
    """What this machine has and lacks."""
    return list(doctor.diagnose(settings or load_settings()))


def _refuse_if_searched(project: Path) -> None:
    """Refuse to replace a project on which a run in the background works.

    Raises:
        UsageError: one does.
    """
    from kernelforge.supervisor.folder import runs_of

    for folder in runs_of([project]):
        if folder.status().live:
            raise UsageError(
                f"run {folder.id} works on {project}", hint=f"stop it first: kforge runs stop {folder.id} -p {project}"
            )


def _with_library(settings: Settings, wanted: bool) -> Settings:
    """The settings, with the library switched off if it is not wanted."""
    return settings if wanted else replace(settings, library=False)


def _options(device: str | None, *, dtype: str | None, samples: int, random_weights: bool) -> ModelOptions:
    from kernelforge.capture.models import ModelOptions
    from kernelforge.capturing import present_device

    return ModelOptions(
        device=present_device(device), dtype=dtype or "", samples=samples, random_weights=random_weights
    )


def _select(project: Project, names: Sequence[str]) -> list[Any]:
    """Variant records by operator name, label or id prefix; all if no name is given."""
    records = [r for card in project.cards() for r in card.variants]
    if not names:
        return records
    chosen = []
    for name in names:
        of_operator = [r for r in records if r.variant.operator == name]
        chosen += of_operator or [project.record(name)]
    return chosen
