"""Compiles the catalogs of a release in processes of Puppet: the engine of previews.

- One Ruby process (`base/share/preview/main.rb`) loads Puppet, and forks for each catalog. It
  executes nothing of the release itself, so no compile finds what another left.
- It reads requests as lines of JSON from a socket, its standard input, and answers each, in any
  order: `{"id": 1, "bytes": 5120}` and then that number of bytes of JSON, or
  `{"id": 1, "failed": REASON}`. What it prints is not read, except for an error at its start.
- It is isolated (`base.machine.isolation`) and bounded: time, memory, output of each compile.
- If it dies, the catalogs that it was compiling are compiled once more, each alone. One that ends
  the process again fails.
"""

import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import field_values
from localpuppet.base.machine.files import remove_tree
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.isolation import CodeIsolation, start_session
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.value import Value
from localpuppet.node.enc.instance_facts import legacy_facts
from localpuppet.node.preview import preview_limits as limits
from localpuppet.node.preview.compile_request import (
    LAYOUT,
    CapturedQuery,
    CompileFailure,
    CompileRequest,
    CompileResult,
    RawReads,
    release_roots,
)
from localpuppet.node.puppet.catalog import CanonicalCatalog
from localpuppet.node.puppet.command_line import COMPILED, Compilation
from localpuppet.node.puppet.launching import make_environment, sealed_pack
from localpuppet.node.releases.release import Release

# Seconds until it is ready, and without an answer while it has requests.
START = 180
SILENCE = 300
_CHUNK = 256 * 1024
_ERRORS = 4000


class CompilerDeathError(Exception):
    """The process has ended, or does not answer."""


class CompilerProcess:
    """A running process; see `start`."""

    def __init__(
        self, channel: socket.socket, process: "subprocess.Popen[bytes]", stack: ExitStack
    ) -> None:
        self._channel = channel
        self._process = process
        self._stack = stack
        self._received = bytearray()
        self.puppet = ""

    @property
    def pid(self) -> int:
        """Return the number of the process that was started."""
        return self._process.pid

    @classmethod
    def start(
        cls,
        isolated: AbstractContextManager[Sequence[str]],
        *,
        env: Mapping[str, str],
        setup: Mapping[str, Any],
        passed: Sequence[int] = (),
    ) -> "CompilerProcess":
        """Start the process, and wait until it has read its setup and loaded Puppet."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ExitStack() as stack:
            stack.callback(ours.close)
            argv = stack.enter_context(isolated)
            errors = os.memfd_create("errors", os.MFD_CLOEXEC)
            stack.callback(os.close, errors)
            try:
                process = stack.enter_context(
                    start_session(
                        argv,
                        env=env,
                        cwd=Path("/"),
                        stdin=theirs.fileno(),
                        out=subprocess.DEVNULL,
                        err=errors,
                        passed=passed,
                    )
                )
            finally:
                theirs.close()
            compiler = cls(ours, process, stack.pop_all())
        try:
            compiler.send(setup)
            ready = compiler._parse(compiler._line(time.monotonic() + START))
            compiler.puppet = str(ready.get("ready", ""))[:100]
        except CompilerDeathError as error:
            text = os.pread(errors, _ERRORS, 0).decode("utf-8", "replace").strip()
            compiler.close()
            reason = text.splitlines()[0] if text else str(error)
            raise StateError(
                f"Puppet's compiler did not start: {reason}",
                hint="isolated, it sees the file of 'puppet.command', Ruby and its libraries only",
            ) from error
        return compiler

    def send(self, message: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + SILENCE
        while data:
            readable, writable = self._wait(deadline, writing=True)
            if readable:
                self._read()
            if writable:
                try:
                    data = data[self._channel.send(data) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise CompilerDeathError("it has ended") from error

    def receive(self) -> tuple[int, dict[str, Any], int]:
        """Return the number of a request, the answer to it, and the bytes of the answer."""
        deadline = time.monotonic() + SILENCE
        head = self._parse(self._line(deadline))
        number, length = head.get("id"), head.get("bytes", 0)
        if (
            type(number) is not int
            or type(length) is not int
            or not 0 <= length <= limits.MAX_COMPILER_ANSWER
        ):
            raise CompilerDeathError("it sent an unexpected message")
        if "failed" in head:
            return number, head, 0
        while len(self._received) < length:
            self._wait(deadline, writing=False)
            self._read()
        body = bytes(self._received[:length])
        del self._received[:length]
        try:  # a release can write its own result
            return number, self._parse(body), length
        except CompilerDeathError as error:
            return number, {"failed": f"the compile's result cannot be read: {error}"}, 0

    def close(self) -> None:
        """End the process with everything that it started, and wait for its end."""
        self._stack.close()

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            value = loads(data, values=limits.MAX_COMPILER_VALUES)
        except (ValueError, InvalidInputError) as error:
            raise CompilerDeathError(f"it is not the expected JSON: {error}"[:_ERRORS]) from error
        if not isinstance(value, dict):
            raise CompilerDeathError("it sent an unexpected message")
        return value

    def _line(self, deadline: float) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > limits.MAX_COMPILER_LINE:
                raise CompilerDeathError("it sent an unexpected message")
            self._wait(deadline, writing=False)
            self._read()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _wait(self, deadline: float, *, writing: bool) -> tuple[bool, bool]:
        left = deadline - time.monotonic()
        outputs = [self._channel] if writing else []
        ready = select.select([self._channel], outputs, [], max(left, 0))
        if not ready[0] and not ready[1]:
            raise CompilerDeathError("it did not answer in time")
        return bool(ready[0]), bool(ready[1])

    def _read(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise CompilerDeathError("it has ended") from error
        if not data:
            raise CompilerDeathError("it has ended")
        self._received += data


# Each compile with all that it starts: seconds, bytes of memory, of a file that it writes, of its
# result; descriptors of a process; processes and threads.
LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "seconds": 120,
        "memory": 1024**3,
        "file": 16 * 1024**2,
        "result": 64 * 1024**2,
        "descriptors": 256,
        "programs": 64,
    }
)
# Characters of an error, and of a name that a compile read; reasons why a compile is repeated.
MAX_MESSAGE, MAX_NAME, MAX_REASONS = 16_384, 4096, 20
_DIED = "Puppet's process died while it compiled this catalog"
# Locked while a directory is in use; the lock of a killed process is free.
_ALIVE = "alive.lock"
_STARTS, _PATIENCE = "another process starts to compile", 60.0
_NO_HIERA = Path("/nonexistent/hiera.yaml")


class PuppetCompileEngine(Value):
    """Compiles catalogs with Puppet.

    Attributes:
        scratch: A directory for files that exist while it compiles.
        store: Directories that have the modules of releases.
        compilation: Returns the compilation of a release in an environment below a directory.
        site_manifest: The site manifest for a release that has none.
        mark_key: The key of the marks of secrets, hexadecimal; empty for no marks.
        asks: Whether query functions ask the agent of this node; otherwise a request has answers.
    """

    scratch: Path
    compilation: Callable[[Release, str, Path], Compilation]
    command: Callable[[], list[str]]
    env: Callable[[], Mapping[str, str]]
    version: Callable[[], str]
    own_modules: Path
    site_manifest: Path
    isolation: CodeIsolation
    store: tuple[Path, ...] = ()
    processes: int = 2
    mark_key: str = ""
    asks: bool = False
    ruby: Callable[[], Iterable[Path]] = tuple
    limits: Mapping[str, int] = field(default_factory=lambda: LIMITS)

    def compile(
        self, release: Release, requests: Iterable[CompileRequest]
    ) -> Iterator[CompileResult]:
        """Yield one result for each request; see `CompileEngine`."""
        with self._directory() as directory:
            compiler = ReleaseCompiler(engine=self, release=release, directory=directory)
            try:
                yield from compiler.compile(iter(requests))
            finally:
                compiler.close()

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        directory = self.scratch / f"compile-{secrets.token_hex(4)}"
        with ExitStack() as cleanup:
            with Flock.need(self.scratch / "lock", _STARTS, seconds=_PATIENCE):
                _remove_abandoned(self.scratch)
                cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
                directory.mkdir(mode=0o755)
                cleanup.enter_context(Flock.need(directory / _ALIVE, _STARTS))
            (directory / "root").mkdir()
            (directory / "environments").mkdir()
            yield directory

    @contextmanager
    def environment(self) -> Iterator[tuple[Mapping[str, str], Sequence[int]]]:
        """Yield the variables of a compiler, and the descriptors that it inherits.

        Isolated, it does not see the state directory, and inherits its compiled Ruby.
        """
        env, pack = self.env(), None
        if COMPILED in env and not self.isolation.trusted:
            pack = sealed_pack(Path(env[COMPILED]), self.ruby())
        if pack is None:
            yield env, ()
            return
        with pack:
            yield {**env, COMPILED: str(pack.fileno())}, (pack.fileno(),)


def _remove_abandoned(scratch: Path) -> None:
    """Remove the directories of processes that were killed; the caller keeps new ones out."""
    for directory in scratch.glob("compile-*"):
        with suppress(StateError):
            if (lock := Flock.take(directory / _ALIVE)) is not None:
                with lock:
                    remove_tree(directory)


class ReleaseCompiler:
    """Compiles the catalogs of one release; its files are below `root` and `environments`."""

    def __init__(self, *, engine: PuppetCompileEngine, release: Release, directory: Path) -> None:
        self._engine = engine
        self._release = release
        self._directory = directory
        self._environments: set[str] = set()
        self._process: CompilerProcess | None = None
        self._deaths = 0
        self._number = 0

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def compile(self, requests: Iterator[CompileRequest]) -> Iterator[CompileResult]:
        """Yield one result for each request."""
        alone: deque[CompileRequest] = deque()
        running: dict[int, CompileRequest] = {}
        waiting = next(requests, None)
        while waiting is not None or running or alone:
            try:
                if alone and not running:
                    yield self._compile_alone(alone.popleft())
                    continue
                while waiting is not None and not alone and len(running) <= self._engine.processes:
                    after = next(requests, None)
                    number = self._ask(waiting, more=after is not None)
                    running[number] = waiting
                    waiting = after
                number, raw, size = self._open().receive()
                if number not in running:
                    raise CompilerDeathError("it answered what it was not asked")
                yield _result(running.pop(number), raw, size)
            except CompilerDeathError:
                self._die()
                alone.extend(running.values())
                running.clear()

    def _compile_alone(self, request: CompileRequest) -> CompileResult:
        try:
            asked = self._ask(request, more=True)
            number, raw, size = self._open().receive()
            if number != asked:
                raise CompilerDeathError("it answered what it was not asked")
            return _result(request, raw, size)
        except CompilerDeathError as error:
            self._die()
            return _failure(request, f"{_DIED}: {error}")

    def _die(self) -> None:
        self.close()
        self._deaths += 1
        if self._deaths > limits.MAX_DEATHS:
            raise StateError(f"the compiler died {self._deaths} times", where=self._release.name)

    def _ask(self, request: CompileRequest, *, more: bool) -> int:
        if request.environment not in self._environments:
            make_environment(self._compilation(request.environment))
            (self._directory / "environments" / request.environment).chmod(0o755)
            self._environments.add(request.environment)
        self._number += 1
        self._open().send(
            {
                "id": self._number,
                **field_values(request),
                "queries": [field_values(query) for query in request.queries],
                "legacy": legacy_facts(request.facts),
                "more": more,
            }
        )
        return self._number

    def _compilation(self, environment: str) -> Compilation:
        directory = self._directory / "environments"
        return self._engine.compilation(self._release, environment, directory)

    def _open(self) -> CompilerProcess:
        if self._process is None:
            engine, root = self._engine, self._directory / "root"
            compilation = self._compilation("production")
            make_environment(compilation)
            visible = [*self._trees(), engine.own_modules, compilation.environments]
            engine.isolation.refuse_outside(visible, self._inside())
            engine.isolation.check(root)
            with engine.environment() as (env, passed):
                self._process = CompilerProcess.start(
                    engine.isolation.command(engine.command(), visible, root, ruby=engine.ruby()),
                    env=env,
                    setup=self._setup(compilation),
                    passed=passed,
                )
            if self._process.puppet not in engine.version():
                raise StateError(
                    f"the Puppet that compiles is {self._process.puppet}, and runs use another",
                    where=engine.command()[0],
                    hint="set puppet.command to a command that passes RUBYOPT on to Ruby",
                )
        return self._process

    def _trees(self) -> list[Path]:
        release = self._release
        return [
            *release.whole_modulepath,
            release.directory,
            *([release.hiera_config.parent] if release.hiera_config else []),
            *release.trees.values(),
            release.site_manifest or self._engine.site_manifest,
            shared_file("preview").parent,
        ]

    def _inside(self) -> list[Path]:
        """Return the directories and files that have all code of the release, and localpuppet's."""
        engine = self._engine
        code = [self._release.directory, *self._release.base, *engine.store, engine.site_manifest]
        return [*code, engine.own_modules, shared_file("preview").parent, self._directory]

    def _setup(self, compilation: Compilation) -> dict[str, Any]:
        engine = self._engine
        roots = release_roots(
            self._release,
            own_modules=engine.own_modules,
            site_manifest=engine.site_manifest,
            environments=compilation.environments,
        )
        return {
            "arguments": [
                *("--environmentpath", str(compilation.environments)),
                *("--environment", "production"),
                *("--modulepath", ":".join(map(str, compilation.modulepath))),
                *("--hiera_config", str(_NO_HIERA), "--config", "/nonexistent/puppet.conf"),
            ],
            "own": str(engine.own_modules),
            "hiera": str(compilation.hiera_config or _NO_HIERA),
            "manifest": str(compilation.site_manifest),
            "modulepath": [str(path) for path in compilation.modulepath],
            "roots": roots,
            "system": [str(compilation.environments)],
            "key": engine.mark_key or None,
            "asks": engine.asks,
            "limits": {**engine.limits, "processes": engine.processes},
            "isolated": not engine.isolation.trusted,
        }


def _result(request: CompileRequest, raw: Mapping[str, Any], size: int) -> CompileResult:
    """Return the result in the compiler's answer of a size; what it sends may be the release's."""
    if "failed" in raw:
        return _failure(request, str(raw["failed"])[:400])
    try:
        reads = _reads(raw["reads"])
        if raw["failure"] is not None:
            failure = _parse_failure(raw["failure"])
            return CompileResult(node=request.node, failure=failure, reads=reads)
        catalog = CanonicalCatalog.of(raw["catalog"])
        if catalog.certname != request.node:
            raise ValueError("it is of another node")
        return CompileResult(node=request.node, catalog=catalog, reads=reads, size=size)
    except InvalidInputError as error:
        failure = CompileFailure(message=str(error))
        return CompileResult(node=request.node, failure=failure, reads=reads)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _failure(request, f"the compile returned an unexpected result: {error!r}"[:400])


def _parse_failure(raw: Mapping[str, Any]) -> CompileFailure:
    file, line = raw["file"], raw["line"]
    return CompileFailure(
        message=str(raw["message"])[:MAX_MESSAGE] or "Puppet gives no reason",
        file=None if file is None else str(file)[:MAX_NAME],
        line=line if type(line) is int else None,
    )


def _failure(request: CompileRequest, message: str) -> CompileResult:
    reads = RawReads(impure=("the compile did not end by itself",))
    return CompileResult(node=request.node, failure=CompileFailure(message=message), reads=reads)


def _reads(raw: Mapping[str, Any]) -> RawReads:
    return RawReads(
        files=tuple(sorted({*_texts(raw["files"]), LAYOUT})),
        absent=_texts(raw["absent"]),
        present=_texts(raw["present"]),
        listed=_texts(raw["listed"]),
        keys={str(file): _texts(keys) for file, keys in raw["keys"].items()},
        facts=tuple(_texts(path) for path in raw["facts"]),
        trusted=tuple(_texts(path) for path in raw["trusted"]),
        parameters=_texts(raw["parameters"]),
        queries=tuple(map(_query, raw["queries"])),
        impure=_texts(raw["impure"])[:MAX_REASONS],
    )


def _query(raw: Mapping[str, Any]) -> CapturedQuery:
    (function,), arguments = _texts([raw["function"]]), raw["arguments"]
    if not isinstance(arguments, list):
        raise TypeError("the arguments of a query are not a list")
    return CapturedQuery(function=function, arguments=tuple(arguments), answer=raw["answer"])


def _texts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise TypeError("names are not a list")
    if not all(isinstance(text, str) and len(text) <= MAX_NAME for text in raw):
        raise TypeError("a name is not a text, or too long")
    return tuple(raw)
