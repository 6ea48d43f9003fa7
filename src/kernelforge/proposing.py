"""Opens the generator that a search was told by name: a plug-in, a language model, or a recording of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from kernelforge.errors import NotFound, UsageError
from kernelforge.generate.types import Generator, Repairing
from kernelforge.plugins import load_plugin, plugin_names
from kernelforge.settings import Settings

if TYPE_CHECKING:
    from kernelforge.generate.llm.account import CallStore
    from kernelforge.search.types import Budget

LLM, REPLAY = "llm", "replay"
"""What stands before the colon of a generator's name."""
TEMPLATE = "template"


def open_generator(
    name: str, store: CallStore, budget: Budget, *, run: str, settings: Settings
) -> tuple[Generator, Repairing | None]:
    """The generator of that name; and once more, if it can mend what failed.

    Args:
        name: of a plug-in, or "llm:PROVIDER/MODEL", or "replay:FILE" for the candidates of a recording.
        store: of the calls. run: their id. budget: of all calls with it together.

    Raises:
        NotFound: no such generator, provider or file. EnvironmentMissing: the language model's key or package.
        UsageError: dollars are limited, and the model has no known price.
    """
    kind, _, what = name.partition(":")
    if kind == LLM:
        return _language_model(what, store, budget, run=run, settings=settings)
    if kind == REPLAY:
        from kernelforge.recording import read_recording
        from kernelforge.replaying import RecordedProposals

        recorded = RecordedProposals(read_recording(Path(what)))
        return recorded, recorded
    try:
        return cast(Generator, load_plugin("kernelforge.generate.generators", name, "GENERATOR")), None
    except NotFound as error:
        known = ", ".join((*plugin_names("kernelforge.generate.generators"), "llm:PROVIDER/MODEL", "replay:FILE"))
        raise NotFound(f"no generator {name!r}", hint=f"known: {known}") from error


def check_generator(name: str, settings: Settings) -> None:
    """Raise what `open_generator` would, as far as it is seen without a project."""
    from kernelforge.generate.llm.account import MemoryCalls
    from kernelforge.search.types import Budget

    open_generator(name, MemoryCalls(), Budget(), run="", settings=settings)


def _language_model(
    model: str, store: CallStore, budget: Budget, *, run: str, settings: Settings
) -> tuple[Generator, Repairing | None]:
    from kernelforge.generate.llm.account import Account
    from kernelforge.generate.llm.client import open_client
    from kernelforge.generate.llm.generator import LLMGenerator

    if not model:
        raise UsageError("which language model?", hint="name it as llm:PROVIDER/MODEL (docs/llm.md)")
    client = open_client(model, settings)
    if budget.usd is not None and not client.has_price:
        raise UsageError(
            f"{client.model} has no known price, so that a limit in dollars cannot be kept",
            hint="configure its price (docs/llm.md), or limit tokens, trials or time instead",
        )
    account = Account(store=store, run=run, usd=budget.usd, tokens=budget.tokens)
    made = LLMGenerator(client=client, account=account)
    return made, made
