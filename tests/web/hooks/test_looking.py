"""Looks at real repositories: which tags count, and what the worker makes of them."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import ReleasePath, SignerName
from localpuppet.base.machine.files import write_json
from localpuppet.node.app import NodeApp
from localpuppet.web.dashboard.signing_actor import STARTS
from localpuppet.web.hooks import hook_worker
from localpuppet.web.hooks.hook_settings import HookSettings, HookType
from localpuppet.web.hooks.hook_worker import UNDER_WAY, HookWorker, TagSearch, read_records
from tests.doubles.ports import FakeClock, FakeLog
from tests.rigs.node import Node
from tests.rigs.signing import countersign
from tests.web.hooks.make import ReleaseRepository

HOUR = 3600
WAITS = "waits for a tag that is new"


@dataclass
class Watch:
    """A worker over a repository, which a test lets look."""

    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    signatures: int = 1
    brought: list[str] = field(default_factory=list)
    rollout: dict[str, str] = field(default_factory=dict)
    problem: BaseException | None = None
    failing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.releases = ReleaseRepository(self.directory, "ssh", "other")
        self.repo = self.releases.repo
        self.node = Node(self.directory / "node")
        self.node.root.mkdir()
        source = {**self.releases.source, "signatures": self.signatures}
        action = {"rollout": self.rollout} if self.rollout else {"stage": "role=web"}
        hook = {"type": "github", "secret_file": "secret", "source": "web", "caller": "alice"}
        self.node.settings(
            sources={"web": source, "web2": source},
            allow_file_urls=True,
            hooks={"web": {**hook, **action}},
        )
        self.again()

    def again(self, source: str = "web") -> None:
        """Start the worker (again), as a process does."""
        app, log = NodeApp(str(self.node.root)), FakeLog()
        hook = HookSettings(
            type=HookType.GITHUB,
            secret_file=Path("secret"),
            source=source,
            caller=SignerName("alice"),
            stage="" if self.rollout else "role=web",
            rollout=self.rollout,
        )
        self.worker = HookWorker(
            {"web": hook},
            TagSearch(app.supply, app.git()).look,
            self._act,
            state=self.node.state,
            metrics=self.node.state / "metrics.prom",
            clock=self.clock,
            log=log,
            show=self._show,
        )

    def _show(self, failing: Mapping[str, str]) -> None:
        self.failing = dict(failing)

    async def _act(
        self, name: str, hook: HookSettings, release: ReleasePath, since: float
    ) -> tuple[str, bool]:
        record = read_records(self.node.state)[name]
        assert (record.result, record.looked_at) == (f"{release}: {UNDER_WAY}", since)
        if self.problem is not None:
            raise self.problem
        self.brought.append(release)
        return "done", False

    def release(self, tag: str, *, at: float = 0.0, **more: Any) -> None:
        """Push a release that was made `at` seconds from now."""
        self.releases.push(tag, int(self.clock.now().timestamp() + at), **more)

    def look(self, *, after: float = 60.0) -> str:
        """Let the worker look; return the result or the problem."""
        self.clock.advance(after)
        self.worker.deliver("web")
        asyncio.run(self.worker.step("web"))
        record = read_records(self.node.state)["web"]
        return record.problem or record.result


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_only_a_newer_tag_that_passes_all_checks_is_brought_to_nodes(watch: Watch) -> None:
    watch.release("r1")
    assert (watch.look(), watch.brought) == (WAITS, [])  # the first look only remembers
    watch.release("r2")
    assert watch.look() == "web/tags/r2: done"
    watch.release("r0", at=-2 * HOUR)
    assert watch.look() == "web/tags/r2: done"
    watch.release("future", at=25 * HOUR)
    assert "web/tags/future: refused: " in watch.look()
    watch.release("unsigned", signed=False)
    assert "web/tags/unsigned: refused: " in watch.look()
    watch.release("other", source="shop")
    assert "is for the source shop, not for web" in watch.look()
    watch.release("broken", manifest="modules: [")
    assert "web/tags/broken: refused: " in watch.look()
    watch.repo.git("tag", "light")
    watch.repo.git("tag", "a/b")
    watch.repo.git("branch", "r9")
    assert "web/tags/light: refused: " in watch.look()
    assert watch.brought == ["web/tags/r2"]
    watch.release("unsigned")  # signed now
    assert watch.look() == "web/tags/unsigned: done"


def test_a_clock_that_was_ahead_at_the_first_look_hides_no_tag(watch: Watch) -> None:
    watch.clock.advance(24 * HOUR)
    watch.look()
    watch.clock.advance(-24 * HOUR)
    watch.again()
    watch.release("r1")
    assert (watch.look(), watch.brought) == ("web/tags/r1: done", ["web/tags/r1"])


def test_of_several_new_tags_the_newest_is_brought_also_after_a_restart(watch: Watch) -> None:
    watch.look()
    for tag, at in (("a", 3), ("b", 9), ("c", 6)):
        watch.release(tag, at=at)
    watch.again()
    assert watch.look() == "web/tags/b: done"
    watch.again()
    assert watch.look() == "web/tags/b: done"
    assert watch.brought == ["web/tags/b"]
    watch.again("web2")  # another source: what it has is old
    assert (watch.look(), watch.brought) == (WAITS, ["web/tags/b"])


def test_tags_beyond_one_look_are_judged_soon(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_worker, "MOST_NEW", 2)
    watch.look()
    for tag in ("a1", "a2", "a3", "a4"):  # of a person with the right to push and without a key
        watch.release(tag, signed=False)
    watch.release("r1")
    asyncio.run(watch.worker.step("web"))  # a look without a delivery
    for _ in range(2):
        assert watch.worker._due["web"] == watch.clock.monotonic()
        asyncio.run(watch.worker.step("web"))
    assert watch.brought == ["web/tags/r1"]
    assert watch.worker._due["web"] > watch.clock.monotonic()


def test_a_tag_counts_when_its_last_signature_has_come(tmp_path: Path) -> None:
    watch = Watch(tmp_path, signatures=2)
    watch.look()
    watch.release("r1")
    assert "1 more must sign" in watch.look()
    countersign(watch.repo, "r1", watch.releases.signing, "other")
    assert watch.look() == "web/tags/r1: done"


def test_an_outage_delays_a_release_and_a_failed_stage_is_tried_again(watch: Watch) -> None:
    watch.look()
    watch.release("r1")
    away = watch.repo.path.rename(watch.repo.path.with_name("away"))
    assert "did not answer" in watch.look()
    assert "did not answer" in watch.failing["web"]
    away.rename(watch.repo.path)
    watch.problem = UnavailableError("cannot be reached", where="bus")
    assert watch.look() == "bus: cannot be reached"
    watch.problem = None
    assert watch.look() == "web/tags/r1: done"
    assert watch.failing == {}


def interrupted(watch: Watch) -> None:
    """Let a process end while it brings r1 to nodes, and start the next one."""
    watch.look()
    watch.release("r1")
    watch.problem = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        watch.look()
    watch.problem = None
    watch.again()


def test_a_stage_that_was_interrupted_is_repeated_before_a_newer_release(watch: Watch) -> None:
    interrupted(watch)
    assert watch.failing == {}
    watch.release("r2", at=60)
    watch.problem = UnavailableError("cannot be reached", where="bus")
    assert watch.look() == "bus: cannot be reached"
    watch.problem = None
    assert watch.look() == "web/tags/r2: done"
    assert watch.brought == ["web/tags/r1", "web/tags/r2"]


def test_a_rollout_that_was_interrupted_waits_until_no_other_can_begin(tmp_path: Path) -> None:
    watch = Watch(tmp_path, rollout={"query": "role=web"})
    interrupted(watch)
    assert watch.look(after=STARTS - 1) == f"web/tags/r1: {UNDER_WAY}"
    assert watch.brought == []
    assert watch.look(after=1) == "web/tags/r1: done"
    assert (watch.look(), watch.brought) == ("web/tags/r1: done", ["web/tags/r1"])


def test_a_full_disk_hides_no_rollout_that_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(tmp_path, rollout={"query": "role=web"})
    interrupted(watch)
    accepted_at = read_records(watch.node.state)["web"].looked_at
    problems = [StateError("no space left", where="hooks.json")]

    def full_once(*args: Any) -> None:
        if problems:
            raise problems.pop()
        write_json(*args)

    monkeypatch.setattr(hook_worker, "write_json", full_once)
    assert watch.look(after=STARTS) == "hooks.json: no space left"
    assert read_records(watch.node.state)["web"].looked_at == accepted_at
    assert watch.look() == "web/tags/r1: done"


async def test_deliveries_during_a_look_lead_to_one_more(watch: Watch) -> None:
    looks, leave = list[int](), asyncio.Event()
    inner = watch.worker.look
    loop = asyncio.get_running_loop()

    def look(*args: object) -> object:
        looks.append(len(looks))
        if len(looks) == 1:
            for _ in range(1000):
                loop.call_soon_threadsafe(watch.worker.deliver, "web")
        else:
            loop.call_soon_threadsafe(leave.set)
        return inner(*args)  # type: ignore[arg-type]

    watch.worker.look = look  # type: ignore[assignment]
    await watch.worker.run(leave)
    assert looks == [0, 1]
    assert json.loads((watch.node.state / "web" / "hooks.json").read_text())["schema"] == 1
