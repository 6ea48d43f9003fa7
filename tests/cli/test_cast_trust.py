"""`kforge cast trust|untrust|keys`, and what `inspect` and `verify` say of a package's signer."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelforge.cli import trusting
from kernelforge.package.reader import read_package
from kernelforge.package.signing import Signer, fingerprint
from kernelforge.package.types import Header
from kernelforge.package.writer import write_package

FIXTURE = Path(__file__).parents[1] / "package" / "fixtures" / "format_1.cast"
STRANGER = Signer.of(b"\3" * 32)


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who trusts nothing, in a folder with the package `m.cast` of a stranger."""
    monkeypatch.setenv("KFORGE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    entries = read_package(FIXTURE).entries
    header = Header(name="m", device="cpu", torch="2.13.0", created_by="a stranger", driver="")
    write_package(Path("m.cast"), entries, header=header, signer=STRANGER)


def trusted(kforge: Any, path: str = "m.cast") -> bool:
    return bool(json.loads(kforge("cast", "inspect", path, "--json").stdout)["trusted"])


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Somebody at the terminal types this."""
    monkeypatch.setattr(trusting, "can_ask", lambda out: True)
    monkeypatch.setattr("kernelforge.cli.commands.cast.can_ask", lambda out: True)
    monkeypatch.setattr(trusting, "_answer", lambda: answer)


def test_looking_needs_no_trust_and_tells_all_that_one_wants_to_know(kforge: Any) -> None:
    for verb in ("inspect", "verify"):
        ran = kforge("cast", verb, "m.cast")
        assert ran.code == 0
        facts = dict(line.split("  ", 1) for line in ran.stdout.splitlines() if "  " in line)
        facts = {name.strip(): value.strip() for name, value in facts.items()}
        assert facts["signed by"] == f"{fingerprint(STRANGER.public_key)} ({STRANGER.public_key})"
        assert facts["hash"] == f"sha256:{read_package(Path('m.cast')).digest}"
        assert facts["trust"] == "not trusted: its signer is unknown here"
        assert (facts["operators"], facts["made by"], facts["audit"]) == ("add 1, softmax 1", "manual 2", "generated 2")
    assert ran.stderr.splitlines()[-1] == "next: kforge cast trust m.cast"
    assert not Path("config").exists()


def test_without_a_terminal_nobody_is_asked(kforge: Any) -> None:
    ran = kforge("cast", "trust", "m.cast")
    assert (ran.code, ran.stdout) == (2, "")
    assert "nobody can be asked here" in ran.stderr
    assert not trusted(kforge)


def test_this_very_file(kforge: Any) -> None:
    digest = read_package(Path("m.cast")).digest
    ran = kforge("cast", "trust", "m.cast", "--yes")
    assert ran.stdout == f"the file with sha256:{digest} is trusted from now on\n"
    assert trusted(kforge)
    assert "trusted by its hash already" in kforge("cast", "trust", "m.cast").stdout
    assert digest in kforge("cast", "keys").stdout
    shutil.copy("m.cast", "copy.cast")
    assert trusted(kforge, "copy.cast")  # its name does not matter, its bytes do
    assert kforge("cast", "untrust", f"sha256:{digest}").code == 0
    assert not trusted(kforge)


def test_whatever_its_signer_signs(kforge: Any) -> None:
    header = Header(name="other", device="cpu", torch="2.13.0", created_by="a stranger")
    write_package(Path("other.cast"), [], header=header, signer=STRANGER)
    ran = kforge("cast", "trust", "m.cast", "--signer", "--yes", "--json")
    assert json.loads(ran.stdout) == {"keys": [STRANGER.public_key], "hashes": [], "trusted": True}
    assert trusted(kforge, "other.cast")
    assert json.loads(kforge("cast", "keys", "--json").stdout)["keys"] == {STRANGER.public_key: "m.cast"}
    assert kforge("cast", "untrust", fingerprint(STRANGER.public_key)).code == 0
    assert not trusted(kforge, "other.cast")


def test_a_key_by_itself(kforge: Any) -> None:
    assert kforge("cast", "trust", STRANGER.public_key).code == 0
    assert trusted(kforge)
    assert kforge("cast", "untrust", STRANGER.public_key).code == 0
    ran = kforge("cast", "untrust", STRANGER.public_key)
    assert (ran.code, ran.stdout) == (3, "")


def test_nobodys_package_has_no_signer_to_trust(kforge: Any) -> None:
    ran = kforge("cast", "trust", str(FIXTURE), "--signer", "--yes")
    assert ran.code == 2 and "nobody signed" in ran.stderr


@pytest.mark.parametrize(("answer", "keys", "hashes"), [("h", 0, 1), (" H ", 0, 1), ("k", 1, 0)])
def test_the_person_at_the_terminal_decides(
    kforge: Any, monkeypatch: pytest.MonkeyPatch, answer: str, keys: int, hashes: int
) -> None:
    answering(monkeypatch, answer)
    ran = kforge("cast", "trust", "m.cast")
    assert ran.code == 0
    assert "signed by" in ran.stdout and "[h/k/C]" in ran.stderr
    listed = json.loads(kforge("cast", "keys", "--json").stdout)
    assert (len(listed["keys"]), len(listed["hashes"])) == (keys, hashes)


@pytest.mark.parametrize("answer", ["", "c", "y", "yes", "hash", "x"])
def test_anything_but_a_clear_answer_is_no(kforge: Any, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    answering(monkeypatch, answer)
    ran = kforge("cast", "trust", "m.cast")
    assert (ran.code, ran.stderr.endswith("nothing was changed\n")) == (0, True)
    assert not trusted(kforge)


def test_an_unsigned_package_offers_no_signer(kforge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "k")
    ran = kforge("cast", "trust", str(FIXTURE))
    assert "[h/C]" in ran.stderr
    assert not trusted(kforge, str(FIXTURE))


def test_what_was_shown_is_what_is_trusted(kforge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is exchanged while somebody reads about it is not trusted in its place."""
    shown = read_package(Path("m.cast")).digest
    answering(monkeypatch, "h")

    def exchange() -> str:
        shutil.copy(FIXTURE, "m.cast")
        return "h"

    monkeypatch.setattr(trusting, "_answer", exchange)
    assert kforge("cast", "trust", "m.cast").code == 0
    assert list(json.loads(kforge("cast", "keys", "--json").stdout)["hashes"]) == [shown]
    assert not trusted(kforge)


def test_names_in_a_package_do_not_forge_lines(kforge: Any) -> None:
    header = Header(name="m\nsigned by  you\x1b[2K", device="cpu", torch="2.13.0", created_by="x\rtrust  trusted")
    write_package(Path("m.cast"), read_package(FIXTURE).entries, header=header, signer=STRANGER)
    out = kforge("cast", "inspect", "m.cast").stdout
    assert [line.strip().split("  ")[0] for line in out.splitlines()].count("signed by") == 1
    assert [line.strip().split("  ")[0] for line in out.splitlines()].count("trust") == 1
    assert "\x1b" not in out and "\r" not in out


def test_a_real_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kernelforge", "cast", "trust", "m.cast"]
    with subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        shown = b""
        while b"[h/k/C] " not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"h\n")
        output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert output.endswith("is trusted from now on\n")
