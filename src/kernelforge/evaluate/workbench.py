"""What the judge keeps for one variant: its prepared cases and its timing sets. Loads torch.

Cases, truths and eager's outputs cost as much as judging a candidate; all candidates of a variant share them. Each
candidate gets fresh cases besides, which no other has seen.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kernelforge.benchmark.machine import MachineFacts
from kernelforge.benchmark.points import SETS_CAP_BYTES, TimedPoint, representative_points, rotating_sets
from kernelforge.cards.examples import ExampleStore
from kernelforge.cards.types import SizePoint, VariantRecord
from kernelforge.errors import HarnessError
from kernelforge.runner.protocol import BufferSet
from kernelforge.verify.cases import CAPTURED, CaseMaker, CasePlan, Level
from kernelforge.verify.checks.power import power_of
from kernelforge.verify.prepare import TIMING_ALIGNMENT, Baseline, PreparedCase, buffers_of, prepare
from kernelforge.verify.probes import with_probes
from kernelforge.verify.sizes import SizeChoice, footprint_bytes

logger = logging.getLogger(__name__)

FRESH_CASES = 3
LARGE_BYTES = 128 << 20
"""Above this a fresh case takes a second; one is drawn instead of three, and the timed sets are checked besides."""
STRENGTHENING_ROUNDS = 3
CHECKED_SETS = 2
_STRONG = ("normal", "scaled", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The shared part of judging one variant.

    Attributes:
        cases: of the gate, prepared. weak: null candidates that fewer than two cases reject, although more were drawn:
            the operator itself computes nothing else on any drawn input.
        points: what is timed.
    """

    cases: tuple[PreparedCase, ...]
    weak: tuple[str, ...]
    points: tuple[TimedPoint, ...]

    @property
    def size_bytes(self) -> int:
        sets = sum(b.size_bytes for p in self.points for s in p.sets for b in s.buffers if b.data is not None)
        return sum(c.size_bytes for case in self.cases for c in (case, *case.probes)) + sets


class Workbench:
    """Benches by variant, the least recently used dropped above a cap of bytes. Not thread-safe; owned by one judge."""

    def __init__(self, baseline: Baseline, facts: MachineFacts, device: torch.device, *, cap_bytes: int) -> None:
        self._baseline, self._facts, self._device, self._cap_bytes = baseline, facts, device, cap_bytes
        self._benches: OrderedDict[tuple[str, str], tuple[CaseMaker, Bench]] = OrderedDict()

    def bench(self, record: VariantRecord, examples: ExampleStore) -> Bench:
        """The bench of a variant, made if it is not kept.

        Raises:
            HarnessError: eager or the float64 evaluation fails at observed sizes.
        """
        return self._entry(record, examples)[1]

    def fresh(self, record: VariantRecord, examples: ExampleStore) -> tuple[PreparedCase, ...]:
        """Cases for one candidate alone."""
        maker = self._entry(record, examples)[0]
        plans = maker.fresh_plans(FRESH_CASES)
        large = any(footprint_bytes(record.variant, p.choice.dims) > LARGE_BYTES for p in plans)
        return self._prepared(maker, plans[:1] if large else plans)

    def fresh_points(self, record: VariantRecord, examples: ExampleStore) -> tuple[TimedPoint, ...]:
        """What is timed, with inputs that no candidate was timed on yet; not kept."""
        return self._points(self._entry(record, examples)[0])

    def certificate(self, record: VariantRecord, examples: ExampleStore) -> tuple[PreparedCase, ...]:
        """The cases of the certificate, freshly drawn and not kept."""
        maker = self._entry(record, examples)[0]
        return self._probed(maker, self._prepared(maker, maker.plans(Level.CERTIFICATE)))

    def _entry(self, record: VariantRecord, examples: ExampleStore) -> tuple[CaseMaker, Bench]:
        key = (record.variant.id, str(examples.root))
        if key not in self._benches:
            maker = CaseMaker(record, examples, self._device)
            self._benches[key] = (maker, self._make(maker))
            self._drop_old()
        self._benches.move_to_end(key)
        return self._benches[key]

    def _drop_old(self) -> None:
        while len(self._benches) > 1 and sum(b.size_bytes for _, b in self._benches.values()) > self._cap_bytes:
            self._benches.popitem(last=False)

    def _make(self, maker: CaseMaker) -> Bench:
        variant = maker.record.variant
        cases = list(self._prepared(maker, maker.plans(Level.GATE)))
        if not cases:
            raise HarnessError(f"no case of {variant.label} could be made", hint="capture the model again")
        power = power_of(variant, cases)
        for attempt in range(STRENGTHENING_ROUNDS):
            if not power.missing:
                break
            point = maker.record.points[attempt % len(maker.record.points)]
            choice = SizeChoice(dims=point.dims, scalars=point.scalars, why="observed")
            plan = CasePlan(choice=choice, distribution=_STRONG[attempt % len(_STRONG)])
            cases += self._prepared(maker, [plan])
            power = power_of(variant, cases)
        if power.missing:
            logger.info("%s: no two cases can reject %s", variant.label, ", ".join(power.missing))
        return Bench(cases=self._probed(maker, cases), weak=power.missing, points=self._points(maker))

    def _points(self, maker: CaseMaker) -> tuple[TimedPoint, ...]:
        chosen = representative_points(maker.record)
        return tuple(self._timed(maker, point, calls, share) for point, calls, share in chosen)

    def _prepared(self, maker: CaseMaker, plans: tuple[CasePlan, ...] | list[CasePlan]) -> tuple[PreparedCase, ...]:
        made = (prepare(maker.record.variant, maker.draw(plan), self._baseline) for plan in plans)
        return tuple(case for case in made if case is not None)

    def _probed(self, maker: CaseMaker, cases: Sequence[PreparedCase]) -> tuple[PreparedCase, ...]:
        return with_probes(maker, cases, self._baseline, random.Random(secrets.randbits(128)))

    def _timed(self, maker: CaseMaker, point: SizePoint, calls: int, share: float) -> TimedPoint:
        """Buffer sets of different content; truths only for two of them, and nobody outside knows for which."""
        variant = maker.record.variant
        count = rotating_sets(variant, point.dims, self._facts, cap_bytes=SETS_CAP_BYTES[variant.device])
        choice = SizeChoice(dims=point.dims, scalars=point.scalars, why="observed", example=point.example)
        sets: list[BufferSet] = []
        checked: dict[int, PreparedCase] = {}
        for position in range(count):
            captured = position == 0 and maker.has_example(choice)
            case = maker.draw(CasePlan(choice=choice, distribution=CAPTURED if captured else "normal"))
            sets.append(buffers_of(variant, case, alignment=TIMING_ALIGNMENT))
            if position < CHECKED_SETS:
                prepared = prepare(variant, case, self._baseline)
                assert prepared is not None, "observed sizes either prepare or raise"
                checked[position] = prepared
        return TimedPoint(
            dims=point.dims, scalars=point.scalars, calls=calls, share=share, sets=tuple(sets), checked=_frozen(checked)
        )


def _frozen(checked: dict[int, PreparedCase]) -> Mapping[int, PreparedCase]:
    return dict(sorted(checked.items()))
