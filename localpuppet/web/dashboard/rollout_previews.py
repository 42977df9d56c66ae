"""Previews of rollouts: what a release changes in the catalogs of exactly the chosen nodes.

Each is a process `preview --staged`, with its isolation, limits and cache. One runs at
a time, with low priority. It is killed with all that it started when it takes too long, and when
the dashboard ends. A result is kept for the same releases and captures.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from shlex import join
from threading import Thread

from markupsafe import Markup

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.isolation import Bounds, ProgramResult, run
from localpuppet.base.machine.own_program import own_words
from localpuppet.base.machine.processes import find_programs, mortal
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.releases.release_records import StagedRecords
from localpuppet.web.dashboard.signing_actor import command_problem

# Previews that are kept, and those that may wait.
MOST_KEPT, MOST_WAITING = 8, 4
# Seconds; bytes of memory, of the result and of messages.
BOUNDS = Bounds(seconds=600, memory=4 * 1024**3, output=4 * 1024**2, errors=8 * 1024)
NICE, WORKERS = "10", "2"
# Seconds for which a page waits for a preview.
LOOK = 2.0
PART = b'<div class="preview '


@dataclass(slots=True, eq=False)
class RolloutPreview:
    """A preview of some nodes.

    `missing` are those without a capture. It has not begun while it waits for another one. `part`
    is what `preview_part` returned, as markup.
    """

    key: str
    before: ReleasePath
    after: ReleasePath
    nodes: Sequence[NodeName]
    words: Sequence[str]
    _: KW_ONLY
    missing: Sequence[NodeName] = ()
    begun: float | None = None
    part: str = ""
    problem: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def command(self) -> str:
        """The command line that does the same."""
        return f"localpuppet {join(self.words)}"


@dataclass(slots=True, eq=False, kw_only=True)
class RolloutPreviews:
    """The previews of a dashboard; `words` are the first of a localpuppet command."""

    captures: Path | None
    records: StagedRecords
    root: Path
    env: Mapping[str, str]
    now: Callable[[], float]
    words: Sequence[str] = field(default_factory=own_words)
    bounds: Bounds = BOUNDS
    _kept: BoundedDict[str, RolloutPreview] = field(
        default_factory=partial(BoundedDict, MOST_KEPT), init=False
    )
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1), init=False)

    def named(self, key: str) -> RolloutPreview | None:
        return self._kept.get(key)

    async def begin(
        self, before: ReleasePath, after: ReleasePath, nodes: Sequence[NodeName]
    ) -> RolloutPreview:
        """Return the preview of some nodes, which begins unless it is known or too many wait."""
        one = await asyncio.to_thread(self._ordered, before, after, nodes)
        if (known := self._kept.get(one.key)) and not known.problem:
            return known
        if sum(not other.ended.is_set() for other in self._kept.values()) >= MOST_WAITING:
            raise LocalpuppetError("too many previews wait", hint="try again when they have ended")
        self._kept[one.key] = one
        one.task = asyncio.create_task(self._make(one))
        return one

    def _ordered(
        self, before: ReleasePath, after: ReleasePath, nodes: Sequence[NodeName]
    ) -> RolloutPreview:
        if self.captures is None:
            raise InvalidInputError(
                "the settings name no directory with captures",
                where="web.captures",
                hint="set it, and fill the directory: \"localpuppet capture --query '' DIR\"",
            )
        first, second = self.records.need(before), self.records.need(after)
        files = {file.node: file.status for file in NodesDirectory(self.captures).files()}
        chosen = sorted(name for name in nodes if name in files)
        missing = sorted({*nodes} - {*chosen})
        if not chosen:
            raise InvalidInputError(
                f"has no capture of {shown_names(missing)}",
                where=str(self.captures),
                hint=f"run 'localpuppet capture --node {missing[0]} {self.captures}'",
            )
        parts = [first.composition, second.composition, *(f"{n} {files[n]}" for n in chosen)]
        command = "preview", "--staged", f"{before}..{after}", f"--captures={self.captures}"
        return RolloutPreview(
            key=sha256("\n".join(parts).encode()).hexdigest()[:32],
            before=before,
            after=after,
            nodes=chosen,
            words=(*command, *(f"--node={name}" for name in chosen)),
            missing=missing,
        )

    async def _make(self, one: RolloutPreview) -> None:
        try:
            async with self._turn:
                one.begun = self.now()
                done = await self._process(one)
            if done.out.startswith(PART) and not done.flooded:
                # Written by localpuppet, with all texts escaped.
                one.part = Markup(done.out.decode("utf-8", "replace"))  # noqa: S704
            elif done.flooded:
                one.problem = "the result is too long for a page: run the command in a terminal"
            elif not done.in_time:
                one.problem = f"it did not end within {show_duration(self.bounds.seconds)}"
            else:
                one.problem = command_problem(done.err)
        except (LocalpuppetError, OSError) as error:
            one.problem = str(error)
        finally:
            one.ended.set()

    async def _process(self, one: RolloutPreview) -> ProgramResult:
        """Run the command in a thread that does not outlive the dashboard, nor does the process."""
        path = self.env["PATH"]
        (nice,) = find_programs("nice", path=path, package="coreutils")
        words = [*self.words, "--root", str(self.root), *one.words]
        argv = mortal([nice, "-n", NICE, *words, "--fragment=-", f"--workers={WORKERS}"], path=path)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[ProgramResult] = loop.create_future()

        def finish(done: ProgramResult | None, error: Exception | None) -> None:
            if done is not None and not result.done():
                result.set_result(done)
            elif error is not None and not result.done():
                result.set_exception(error)

        def work() -> None:
            done = problem = None
            try:
                done = run(argv, env=self.env, cwd=self.root, bounds=self.bounds)
            except (LocalpuppetError, OSError) as error:
                problem = error
            with suppress(RuntimeError):  # the dashboard has ended
                loop.call_soon_threadsafe(finish, done, problem)

        Thread(target=work, daemon=True).start()
        return await result
