"""Compares what the engine records with the system calls of the compile."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.node.preview.ports import RawReads
from tests.node.preview.control_release import FILES
from tests.node.preview.engine_rig import compile_all, make_engine, request, write

pytestmark = pytest.mark.puppet

_CALL = re.compile(
    r'^(?P<pid>\d+) +(?P<call>\w+)\((?:AT_FDCWD, )?"(?P<path>[^"]*)"'
    r"(?P<rest>.*)= (?P<code>-?\d+ ?\w*)"
)
# Directories that a loader of Puppet lists to look names up in: only those count (`IndexHooks`).
_INDEXED = re.compile(r"(?:^|/)(?:lib/puppet/functions|functions|types)(?:/|$)")


def system_calls(trace: Path, top: Path) -> tuple[set[str], set[str], set[str]]:
    """Return the names below a directory that children opened, listed, and looked for in vain."""
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
    """Return whether a name or a directory above it is in a set."""
    parts = name.split("/")
    return any("/".join(parts[:length]) in names for length in range(1, len(parts) + 1))


def problems(reads: RawReads, calls: tuple[set[str], set[str], set[str]]) -> list[str]:
    opened, listed, missed = calls
    files = {*reads.files, *reads.keys}
    known = {*files, *reads.absent, *reads.present}
    deep = {name.removesuffix("/**") for name in reads.listed if name.endswith("/**")}
    found = [f"opened {name}" for name in sorted(opened - files)]
    for name in sorted(listed):
        indexed = _INDEXED.search(name) and any(file.startswith(f"{name}/") for file in known)
        if name not in reads.listed and not is_covered(name, deep) and not indexed:
            found.append(f"listed {name}")
    for name in sorted(missed):
        parent = name.rpartition("/")[0]
        if not (is_covered(name, set(reads.absent)) or is_covered(parent, {*reads.listed, *deep})):
            found.append(f"missed {name}")
    return found


def test_nothing_that_a_compile_reads_is_missing(tmp_path: Path) -> None:
    top = tmp_path / "r"
    release, trace = write(top, FILES), tmp_path / "trace"
    engine = make_engine(tmp_path / "e")
    words = ["/usr/bin/strace", "-f", "-e", "trace=%file"]
    traced = replace(engine, command=lambda: [*words, "-o", str(trace), *engine.command()])
    (result,) = compile_all(traced, release, [request("web1.example.com", "web")]).values()
    assert result.failure is None
    calls = system_calls(trace, top)
    assert len(calls[0]) > 10
    assert problems(result.reads, calls) == []
