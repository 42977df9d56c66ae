"""Evaluates a Puppetfile that is a program: Ruby runs it in a restricted child process.

The child is another user (so only root can start it), without network, new privileges or a view of
other processes; its children die with it, and time, memory and output are limited. Its output is
data like a parsed Puppetfile. If the restrictions are impossible, evaluation is refused.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.bounded_program import Bounds, run
from localpuppet.base.machine.confinement import confined, find_programs, mortal
from localpuppet.base.share.files import shared_file
from localpuppet.node.releases.puppetfile.entry import Puppetfile, PuppetfileEntry

SECONDS = 20
CPU_SECONDS = 10
MEMORY = 1024**3
MAX_OUTPUT = 8 * 1024 * 1024
MAX_WORDS = 65536
MAX_PROCESSES = 64
SIGNALLED = 128  # A shell's exit code for a program that a signal ended starts here.
MAX_MODULES = 10_000
USER, _, GROUP = "nobody:nogroup".partition(":")
BOUNDS = Bounds(seconds=SECONDS, output=MAX_OUTPUT, errors=MAX_WORDS, memory=MEMORY)


def evaluate(text: bytes, *, path: str) -> Puppetfile:
    """Return the entries of a Puppetfile after Ruby has run it.

    Args:
        text: The Puppetfile.
        path: The PATH for programs.

    Raises:
        InvalidInputError: Ruby fails, or a limit is exceeded.
        StateError: A program for the child is missing, or the child cannot be restricted.
    """
    done = run(
        _argv(path),
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


def _argv(path: str) -> list[str]:
    if os.geteuid() != 0:
        raise InvalidInputError(
            "'--evaluate' runs Ruby as another user, which only root may do",
            hint="run it with sudo, or write the modules without Ruby",
        )
    (unshare,) = find_programs("unshare", path=path, package="util-linux")
    (ruby,) = find_programs("ruby", path=path, package="ruby")
    limits = {
        "cpu": CPU_SECONDS,
        "as": MEMORY,
        "fsize": MAX_OUTPUT,
        "core": 0,
        "nofile": 64,
        "nproc": MAX_PROCESSES,
    }
    program = [ruby, "--disable=gems,did_you_mean", "-e", _script()]
    unprivileged = confined(program, user=USER, group=GROUP, limits=limits, path=path)
    # No network, and no process of others, whose memory Ruby could write where they are the same
    # user's. Process 1 is root's: Ruby can neither end it nor clear its death signal, and when it
    # ends, the kernel kills everything in its namespace.
    apart = ["--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    first = ["/bin/sh", "-c", '"$@"; exit "$?"', "sh"]
    return mortal([unshare, *apart, "--", *first, *unprivileged], path=path)


def _script() -> str:
    # Passed as text: the other user may have no access to localpuppet's directory.
    return Path(shared_file("puppetfile.rb")).read_text("utf-8")


def _puppetfile(output: bytes) -> Puppetfile:
    try:
        document = loads(output)
        entries = tuple(_entry(item) for item in document["modules"][:MAX_MODULES])
        return Puppetfile(
            entries=entries,
            moduledir=str(document["moduledir"]),
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
        options={str(key): str(value)[:1024] for key, value in options.items()},
    )
