"""Evaluates a Puppetfile that is a program: Ruby runs it isolated (`base/machine/isolation.py`).

Its children die with it, and time, memory and output are limited. Its output is data like a parsed
Puppetfile. If isolation is impossible, evaluation is refused.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.confinement import find_programs
from localpuppet.base.machine.isolation import Bounds, CodeIsolation, run
from localpuppet.base.share.files import shared_file
from localpuppet.node.releases.puppetfile.entry import Puppetfile, PuppetfileEntry

SECONDS = 20
CPU_SECONDS = 10
MEMORY = 1024**3  # of all programs together
MAX_OUTPUT = 8 * 1024 * 1024
MAX_WORDS = 65536
MAX_PROGRAMS = 8
SIGNALLED = 128  # A shell's exit code for a program that a signal ended starts here.
MAX_MODULES = 10_000
BOUNDS = Bounds(seconds=SECONDS, output=MAX_OUTPUT, errors=MAX_WORDS, memory=MEMORY)
LIMITS = {
    "cpu": CPU_SECONDS,
    "as": MEMORY // MAX_PROGRAMS,
    "fsize": MAX_OUTPUT,
    "core": 0,
    "nofile": 64,
    "nproc": MAX_PROGRAMS,
}


def evaluate(text: bytes, *, path: str) -> Puppetfile:
    """Return the entries of a Puppetfile after Ruby has run it.

    Args:
        text: The Puppetfile.
        path: The PATH for programs.

    Raises:
        InvalidInputError: Ruby fails, or a limit is exceeded.
        StateError: A program for the child is missing, or it cannot be isolated.
    """
    (ruby,) = find_programs("ruby", path=path, package="ruby")
    # Passed as text: the other user may have no access to localpuppet's directory.
    script = Path(shared_file("puppetfile.rb")).read_text("utf-8")
    program = [ruby, "--disable=gems,did_you_mean", "-e", script]
    isolation = CodeIsolation(
        path=path,
        memory=MEMORY,
        programs=2 * MAX_PROGRAMS,
        otherwise="write the modules without Ruby",
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        isolation.check(root)
        with isolation.command(program, (), root, limits=LIMITS, watched=True) as command:
            done = run(
                command,
                env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},
                cwd=Path("/"),
                bounds=BOUNDS,
                stdin=text,
            )
    if not done.in_time:
        raise InvalidInputError(f"did not end within {SECONDS} s when Ruby ran it")
    if done.flooded:
        raise InvalidInputError(f"printed more than {MAX_OUTPUT} bytes when Ruby ran it")
    if done.code != 0:
        lines = done.err.decode("utf-8", "replace").strip().splitlines()
        killed = done.code >= SIGNALLED or not lines
        first = "it was killed" if killed else one_line(lines[0])[:300]
        raise InvalidInputError(f"Ruby refuses it: {first}")
    return _puppetfile(done.out)


def _puppetfile(output: bytes) -> Puppetfile:
    try:
        document = loads(output)
        entries = tuple(_entry(item) for item in document["modules"][:MAX_MODULES])
        return Puppetfile(
            entries=entries,
            forge=str(document["forge"]),
            notes={},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("printed unexpected output when Ruby ran it") from error


def _entry(raw: Mapping[str, object]) -> PuppetfileEntry:
    options = raw["options"]
    if not isinstance(options, dict):
        raise TypeError("options")
    return PuppetfileEntry(
        name=str(raw["name"])[:200],
        line=int(str(raw["line"])),
        version=str(raw["version"])[:200],
        moduledir=None if raw["moduledir"] is None else str(raw["moduledir"])[:1024],
        options={str(key): str(value)[:1024] for key, value in options.items()},
    )
