"""A package loads and runs with what `pip install kernelforge` brings, without extras and without any compiler."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

FIXTURE = Path(__file__).parent / "fixtures" / "format_1.cast"
DIGEST = "dc08a26befe05fc985f6d6ec4d8e44c493e51576fb4bda901106ae3e45ee586c"
SCRIPT = '''
import sys

FORBIDDEN = set(sys.argv[2].split(","))

class Without:
    """A finder to which the forbidden modules are not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in FORBIDDEN else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import kernelforge
assert "torch" not in sys.modules and "cryptography" not in sys.modules
package = kernelforge.load(sys.argv[1])
import torch
x = torch.linspace(-1, 1, 32).reshape(4, 8)
with torch.no_grad(), package.dispatch():
    torch.softmax(x, -1)
print([(row.state, row.hits) for row in package.stats()])
'''


def names(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]).lower()


def installed_without_extras() -> set[str]:
    """The distributions that `pip install kernelforge` brings."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    found, left = set[str](), [names(requirement) for requirement in project["dependencies"]]
    while left:
        name = left.pop()
        try:
            wanted = requires(name) or []
        except PackageNotFoundError:
            continue  # of another platform
        if name not in found:
            found.add(name)
            left += [names(r) for r in wanted if "extra ==" not in r]
    return found


def test_no_extra_and_no_compiler_is_needed(tmp_path: Path) -> None:
    torch_version = __import__("torch").__version__
    if not torch_version.startswith("2.13."):
        pytest.skip("the package was judged under torch 2.13")
    core = installed_without_extras()
    assert {"torch", "cryptography", "apache-tvm-ffi"} <= core
    modules = packages_distributions().items()
    forbidden = sorted(m for m, owners in modules if not core & {names(o) for o in owners} and m != "kernelforge")
    assert {"transformers", "mcp", "pytest", "jsonschema"} <= set(forbidden)
    environment = {
        "PATH": str(tmp_path), "HOME": str(tmp_path), "KFORGE_CACHE_DIR": str(tmp_path / "cache"),
        "KFORGE_CONFIG_DIR": str(tmp_path / "config"), "KFORGE_TRUST": f"sha256:{DIGEST}",
        "KFORGE_CXX": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT, str(FIXTURE), ",".join(forbidden)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "[('on', 0), ('on', 1)]"), done.stderr
    assert not list((tmp_path / "cache").glob("**/kforge_call_table*.so"))
    environment["KFORGE_TRUST"] = ""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and "UntrustedPackage" in done.stderr
