"""When two candidates are one: before compiling by their text, afterwards by their binary. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kernelforge.benchmark.clock import was_disturbed
from kernelforge.build.types import Artifact
from kernelforge.evaluate.types import Scored
from kernelforge.search.lineage import standing
from kernelforge.search.types import Node

MEASURED_AS = "measured_as"
"""Of a measurement's environment: the trial whose binary this is."""

_TOKEN = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//(?:\\\n|[^\n])*|/\*.*?\*/', re.DOTALL)


def normalised(source: str) -> str:
    """A source without comments, blank lines and repeated spaces: what the compiler makes of it is the same.

    Line ends stay, for they end preprocessor directives; literals stay as they are.
    """
    bare = _TOKEN.sub(lambda match: match[1] or " ", source)
    lines = (" ".join(line.split()) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def same_binary(artifact: Artifact, nodes: Sequence[Node]) -> Scored | None:
    """What is known of the very binary: the outcome of an accepted node that has it, with this artifact in it.

    Its measurement says whose it is. One that was taken while others used the machine is not handed on.
    """
    for node in reversed(standing(nodes)):
        if node.summary.binary == artifact.digest and isinstance(node.outcome, Scored):
            measurement = node.outcome.measurement
            if was_disturbed(measurement):
                continue
            known = {**measurement.environment, MEASURED_AS: f"trial {node.number}"}
            return replace(node.outcome, artifact=artifact, measurement=replace(measurement, environment=known))
    return None
