"""`import kernelforge` is light, and its public names exist."""

from __future__ import annotations

import resource
import subprocess
import sys

import kernelforge


def cpu_seconds(code: str) -> float:
    """CPU time of a fresh interpreter that runs `code`. Not wall time: other work on the machine must not decide."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_takes_less_than_300_ms() -> None:
    assert min(cpu_seconds("import kernelforge") for _ in range(3)) < 0.3


def test_import_loads_no_heavy_module() -> None:
    code = (
        "import sys, kernelforge\n"
        "heavy = {'torch', 'numpy', 'tvm_ffi', 'sqlalchemy', 'typer', 'rich'} & sys.modules.keys()\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_types_of_all_stages_load_no_torch() -> None:
    stages = (
        "operators", "capture", "cards", "generate", "build", "verify", "benchmark", "audit", "evaluate", "search",
        "package",
    )  # fmt: skip
    imports = "\n".join(f"import kernelforge.{stage}.types" for stage in stages)
    code = f"import sys\n{imports}\nimport kernelforge.report.rows\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve() -> None:
    # In a process of its own, so that what other tests loaded does not matter.
    code = "import kernelforge\nfor name in kernelforge.__all__: getattr(kernelforge, name)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_dir_names_what_is_loaded_when_first_used() -> None:
    code = "import sys, kernelforge\nsys.exit(not set(kernelforge.__all__) <= set(dir(kernelforge)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(kernelforge, "no_such_verb")
