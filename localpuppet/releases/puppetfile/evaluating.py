"""A Puppetfile that is a program: run by Ruby, in a child that can do little.

The child is another user (so only root can start one), without network, without new privileges,
without processes that outlive it and without a view of others, and may use so much time, memory and
output and no more. What it prints is data like a Puppetfile that was read. Whoever cannot start
such a child gets a refusal and not a weaker child.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.formats.strict_json import loads
from localpuppet.formats.text import one_line
from localpuppet.machine.confinement import confined, found
from localpuppet.releases.puppetfile.entry import Entry, Puppetfile
from localpuppet.share.files import shared_file

SECONDS = 20
CPU_SECONDS = 10
MEMORY = 1024**3
MAX_OUTPUT = 8 * 1024 * 1024
MAX_WORDS = 65536
MAX_PROCESSES = 64
MAX_MODULES = 10_000
USER = "nobody"


def evaluate(text: bytes, *, path: str) -> Puppetfile:
    """Return what a Puppetfile says when Ruby has run it.

    Args:
        text: The Puppetfile.
        path: The PATH to find programs in.

    Raises:
        InvalidInputError: Ruby refuses it, or it takes too much.
        StateError: A program for the child is missing, or the child cannot be shut in.
    """
    argv = _argv(path)
    # Files, whose size the kernel limits: a pipe would be read into our own memory.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                argv,
                input=text,
                stdout=output,
                stderr=errors,
                timeout=SECONDS,
                env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InvalidInputError(f"did not end within {SECONDS} s when Ruby ran it") from error
        if done.returncode != 0:
            errors.seek(0)
            lines = errors.read(MAX_WORDS).decode("utf-8", "replace").strip().splitlines()
            # unshare complains of its own signal mask when its child is killed.
            words = [line for line in lines if not line.startswith("unshare: ")]
            first = one_line(words[0])[:300] if words else "it was killed"
            raise InvalidInputError(f"Ruby refuses it: {first}")
        output.seek(0)
        return _puppetfile(output.read(MAX_OUTPUT))


def _argv(path: str) -> list[str]:
    if os.geteuid() != 0:
        raise InvalidInputError(
            "--evaluate runs Ruby as another user, which only root can",
            hint="run it with sudo, or write the modules without Ruby",
        )
    (unshare,) = found("unshare", path=path, package="util-linux")
    (ruby,) = found("ruby", path=path, package="ruby")
    limits = {
        "cpu": CPU_SECONDS,
        "as": MEMORY,
        "fsize": MAX_OUTPUT,
        "core": 0,
        "nofile": 64,
        "nproc": MAX_PROCESSES,
    }
    program = [ruby, "--disable=gems,did_you_mean", "-e", _script()]
    somebody = confined(program, user=USER, group="nogroup", limits=limits, path=path)
    # No network; no process of the child outlives it; and it finds no other, whose memory it could
    # write where that is of the same user.
    apart = ["--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [unshare, *apart, "--", *somebody]


def _script() -> str:
    # Handed over as text: another user may not read where we are installed.
    return Path(shared_file("puppetfile.rb")).read_text("utf-8")


def _puppetfile(output: bytes) -> Puppetfile:
    try:
        said = loads(output)
        entries = tuple(_entry(item) for item in said["modules"][:MAX_MODULES])
        return Puppetfile(
            entries=entries,
            moduledir=str(said["moduledir"]),
            forge=str(said["forge"]),
            notes={},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("printed something of its own when Ruby ran it") from error


def _entry(raw: Mapping[str, object]) -> Entry:
    options = raw["options"]
    if not isinstance(options, dict):
        raise TypeError("options")
    return Entry(
        name=str(raw["name"])[:200],
        line=int(str(raw["line"])),
        version=str(raw["version"])[:200],
        options={str(key): str(value)[:1024] for key, value in options.items()},
    )
