"""Compares the reads that the engine records with the system calls of the compile."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.node.preview.compile_request import CompileRequest, RawReads
from tests.node.preview.rig import FILES, compile_all, make_engine, request, write
from tests.rigs.long import LONG
from tests.rigs.node import PATIENCE

pytestmark = pytest.mark.puppet

_CALL = re.compile(
    r'^(?P<pid>\d+) +(?P<call>\w+)\((?:AT_FDCWD, )?"(?P<path>[^"]*)"'
    r"(?P<rest>.*)= (?P<code>-?\d+ ?\w*)"
)
# Debian's packages puppet-module-puppetlabs-*. If they are not installed, their test is left out.
_DEBIAN = Path("/usr/share/puppet/modules")
_HIERA = """\
version: 5
hierarchy:
  - {name: node, path: 'nodes/%{trusted.certname}.yaml'}
  - {name: os, path: 'os/%{facts.os.family}.yaml'}
  - {name: common, path: common.yaml}
"""
_SITE = (Path(__file__).parents[2] / "data" / "debian-modules.pp").read_text()
REAL: Mapping[str, str] = {
    "hiera.yaml": _HIERA,
    "site.pp": "include site\n",
    "data/common.yaml": "ntp::service_ensure: running\n",
    "modules/site/manifests/init.pp": _SITE,
}
# Directories that a loader of Puppet lists to look up names: only the names count (`IndexHooks`).
# A loader lists all directories of a module, even if it looks up no name.
_INDEXED = re.compile(r"(?:^|/)(?:lib/puppet/functions|functions|types)(?:/|$)")


def system_calls(trace: Path, top: Path) -> tuple[set[str], set[str], set[str]]:
    """Return the names below a directory that children opened, listed, and did not find."""
    opened: set[str] = set()
    listed: set[str] = set()
    missed: set[str] = set()
    lines = trace.read_text(errors="replace").splitlines()
    first = lines[0].split()[0]
    for line in lines:
        match = _CALL.match(line)
        if match is None or match["pid"] == first or not match["path"].startswith(f"{top}/"):
            continue
        name = match["path"].removeprefix(f"{top}/").rstrip("/")
        if match["code"] in ("-1 ENOENT", "-1 ENOTDIR"):
            missed.add(name)
        elif match["code"].startswith("-"):
            continue
        elif match["call"] in ("open", "openat"):
            (listed if "O_DIRECTORY" in match["rest"] else opened).add(name)
    return opened, listed, missed


def is_covered(name: str, names: set[str]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def problems(reads: RawReads, calls: tuple[set[str], set[str], set[str]]) -> list[str]:
    opened, listed, missed = calls
    files = {*reads.files, *reads.keys}
    known = {*files, *reads.absent, *reads.present}
    deep = {name.removesuffix("/**") for name in reads.listed if name.endswith("/**")}
    found = [f"opened {name}" for name in sorted(opened - files)]
    for name in sorted(listed):
        index = _INDEXED.search(name)
        module = name[: index.start() + 1] if index else ""
        indexed = index and any(file.startswith(module) for file in known if _INDEXED.search(file))
        if name not in reads.listed and not is_covered(name, deep) and not indexed:
            found.append(f"listed {name}")
    absent = {*reads.absent, *reads.keys}
    for name in sorted(missed):
        parent = name.rpartition("/")[0]
        if not (is_covered(name, absent) or is_covered(parent, {*reads.listed, *deep})):
            found.append(f"missed {name}")
    return found


def real_request() -> CompileRequest:
    asked = ["puppet", "facts", "show", "--show-legacy"]
    facts = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=PATIENCE)
    return request("web1.example.com", facts=json.loads(facts.stdout))


@pytest.mark.parametrize(
    "real",
    [False, *([pytest.param(True, marks=LONG)] if (_DEBIAN / "haproxy").exists() else [])],
    ids=lambda real: "debian" if real else "own",
)
def test_the_engine_records_every_read_of_a_compile(tmp_path: Path, real: bool) -> None:
    top = tmp_path / "r"
    if real:
        shutil.copytree(_DEBIAN, top / "modules")
    release, trace = write(top, REAL if real else FILES), tmp_path / "trace"
    engine = make_engine(tmp_path / "e")
    words = ["/usr/bin/strace", "-f", "-e", "trace=%file"]
    traced = replace(engine, command=lambda: [*words, "-o", str(trace), *engine.command()])
    asked = real_request() if real else request("web1.example.com", "web")
    (result,) = compile_all(traced, release, [asked]).values()
    assert result.failure is None
    assert result.catalog is not None
    assert len(result.catalog.resources) > (150 if real else 10)
    calls = system_calls(trace, top)
    assert len(calls[0]) > (100 if real else 10)
    assert problems(result.reads, calls) == []
