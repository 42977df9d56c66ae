"""A Puppetfile that is a program: run by Ruby, in a child that can do little.

The child is another user, without network, without new privileges, and may use so much time, memory
and output and no more. What it prints is data like a Puppetfile that was read. Whoever can start no
such child gets a refusal, not a weaker one.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from localpuppet.errors import InvalidInputError, StateError
from localpuppet.formats.strict_json import loads
from localpuppet.formats.text import one_line
from localpuppet.releases.puppetfile.entry import Entry, Puppetfile
from localpuppet.share.files import shared_file

SECONDS = 20
CPU_SECONDS = 10
MEMORY = 1024**3
MAX_OUTPUT = 8 * 1024 * 1024
MAX_MODULES = 10_000
USER = "nobody"
_PROGRAMS = ("unshare", "prlimit", "setpriv", "ruby")


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
    try:
        done = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            timeout=SECONDS,
            env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidInputError(f"did not end within {SECONDS} s when Ruby ran it") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it was killed"]
        raise InvalidInputError(f"Ruby refuses it: {one_line(said[0])[:300]}")
    if len(done.stdout) > MAX_OUTPUT:
        raise InvalidInputError("names more modules than anybody has")
    return _puppetfile(done.stdout)


def _argv(path: str) -> list[str]:
    found = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise StateError(f"{missing[0]} is not installed", hint="apt-get install util-linux ruby")
    root = os.geteuid() == 0
    # A network namespace of its own: for others than root one of a user namespace.
    shut_in = [str(found["unshare"]), "--net", *([] if root else ["--map-current-user"]), "--"]
    limits = [
        *(str(found["prlimit"]), f"--cpu={CPU_SECONDS}", f"--as={MEMORY}", "--fsize=0"),
        *("--core=0", "--nofile=64", "--"),
    ]
    somebody = [str(found["setpriv"]), "--no-new-privs"]
    if root:
        somebody += [f"--reuid={USER}", "--regid=nogroup", "--clear-groups"]
    ruby = [str(found["ruby"]), "--disable=gems,did_you_mean", "-e", _script()]
    return [*shut_in, *somebody, "--", *limits, *ruby]


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
