"""What a node does for a request, and what it replies to the caller."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, OnHoldError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import AuditRecord
from localpuppet.fleet.history.node_history import Auditor
from localpuppet.fleet.requests.request import (
    Arguments,
    ChunkArguments,
    Deploy,
    DeployAction,
    Disable,
    Enable,
    NoArguments,
    RolloutReference,
    RolloutStep,
    RunArguments,
    RunOnce,
    StatusRequest,
    ask,
    read_answer,
)
from localpuppet.fleet.requests.request_handler import Actions, RequestAdmission, RequestHandler
from localpuppet.fleet.trust.seen import SeenIds
from localpuppet.node.runs.holds import Holds
from tests.doubles.certificates import write
from tests.doubles.identities import person, verifier
from tests.doubles.ports import FakeClock, FakeLog

GONE = RunId.parse("20261120T140000.000000Z-dead")
NODE = NodeName.parse("lb01.example.net")
POLICY = b"""policy default deny
allow	choria=alice	log report deploy:foo/tags/*	*	*
allow	choria=alice	*	*	*
allow	choria=bob	enable disable takeover	*	*
allow	choria=carol	enable	*	*
"""


class Rollouts:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.held = ""
        self.awaits = True
        self.over: str | None = None  # the run of the step, when it is over

    def awaits_entries(self) -> bool:
        return self.awaits

    def hear(self, caller: str, rollout: RolloutReference) -> None:
        self.asked.append(("hear", rollout.owner(caller), rollout.epoch))

    def speaks(self, owner: str) -> dict[str, Json]:
        return {"epoch": 2, "by": owner, "since": "now"}

    def check_hold(self, owner: str) -> None:
        if self.held:
            raise OnHoldError(self.held)

    def run(self, caller: str, args: RunOnce, rollout: RolloutStep) -> dict[str, Json]:
        self.asked.append(("run", rollout.owner(caller), rollout.step))
        return {"accepted": True, "step": {"run": self.over}}


class Site:
    def __init__(self, directory: Path, *, ours: bool = True) -> None:
        self.clock = FakeClock()
        self.log = FakeLog()
        self.alice, self.bob, self.node = person("alice"), person("bob"), person(NODE)
        self.carol = person("carol")
        self.runs: list[tuple[str, bool, Sequence[str]]] = []
        self.changes = 0
        self.asked_of: list[tuple[str, str]] = []
        self.rollout = Rollouts()
        self.audited: list[AuditRecord] = []
        self.problem: str | None = None
        self.holds = Holds(directory / "holds", None, self.clock)
        self.verifier = verifier(directory, self.alice, self.bob, self.carol, self.node)
        policy = directory / "policies" / "puppet.policy"
        policy.parent.mkdir()
        write(policy, POLICY)
        self.desk = RequestHandler(
            reception=RequestAdmission(
                me=NODE,
                verifier=self.verifier,
                policy=policy,
                seen=SeenIds(directory / "seen.sqlite", self.clock),
                clock=self.clock,
            ),
            signer=self.node.signer,
            holds=lambda: self.holds,
            actions=Actions(
                status=lambda: {"state": "idle"},
                durations=lambda: [12.5, 10.0],
                last_run=lambda: {"id": "1"},
                report=self.tell,
                log=self.tell,
                changes=self.foresee if ours else None,
                run=self.run,
                changed=self.change,
                deploy=self.deploy,
                confirm=lambda caller, args: {"confirmed": f"{caller} {args.nonce}"},
                capture=lambda args: {"part": args.chunk},
                catalog=lambda args: {"chunk": args.chunk},
                compile=lambda caller, args: {"compiled": f"{caller} {args.release}"},
                rollout=self.rollout,
            ),
            audit=Auditor(self.audited.append, self.clock, self.log),
            clock=self.clock,
            log=self.log,
        )

    def run(self, caller: str, noop: bool, only: Sequence[str], _request: str) -> str | None:
        self.runs.append((caller, noop, only))
        return self.problem

    def foresee(self, run: str, salt: str) -> dict[str, Json]:
        self.asked_of.append((run, salt))
        if run == str(GONE):
            raise InvalidInputError("is not a run")
        return {"total": 3}

    def deploy(self, caller: str, args: Deploy) -> dict[str, Json] | str:
        return {"state": caller} if args.serial > 1 else "the deadline has passed"

    def tell(self, run: RunId | None) -> dict[str, Json]:
        if run == GONE:
            raise InvalidInputError("is not a run")
        return {"run": run}

    def change(self) -> None:
        self.changes += 1

    async def ask(self, action: str, args: Arguments, *, who: str = "alice") -> Any:
        """Return the result, or the text of the error."""
        signer = {"alice": self.alice, "bob": self.bob, "carol": self.carol}[who].signer
        request, token = ask(signer, NODE, action, args, clock=self.clock)
        served = await self.desk.serve(token)
        assert served is not None
        caller, identifier, answer = served
        assert (caller, identifier) == (who, request.jti)
        reply = read_answer(self.verifier, answer, request, clock=self.clock)
        return dict(reply.result) if reply.ok else reply.error


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_confirmation_is_the_newest_epochs_and_no_deployment(site: Site) -> None:
    args = Deploy(
        release=ReleasePath("foo/tags/r2"),
        action=DeployAction.CONFIRM,
        serial=2,
        nonce="9b2c3f70-0000-4000-8000-000000000000",
        rollout=RolloutReference(id=RolloutId("20261122T110000Z-0a1b"), epoch=3),
    )
    assert await site.ask("deploy", args) == {"confirmed": f"choria=alice {args.nonce}"}
    assert site.rollout.asked == [("hear", "choria=alice/rollout/20261122T110000Z-0a1b", 3)]


async def test_a_deployment_is_begun_in_its_callers_name_or_refused(site: Site) -> None:
    args = Deploy(release=ReleasePath("foo/tags/r2"), action=DeployAction.APPLY, serial=2)
    assert await site.ask("deploy", args) == {"state": "choria=alice"}
    assert await site.ask("deploy", replace(args, serial=1)) == "the deadline has passed"
    other = replace(args, release=ReleasePath("bar/tags/r2"))
    denied = "denied by policy line 1 (default): choria=alice deploy:bar/tags/r2"
    assert str(await site.ask("deploy", other)).startswith(f"{denied} ('localpuppet policy allow")
    assert "refused a request: denied by policy" in site.log.text


@pytest.mark.parametrize("action", ["report", "log"])
async def test_a_request_about_a_run_names_it_or_means_the_newest(site: Site, action: str) -> None:
    assert await site.ask(action, RunArguments()) == {"run": None}
    run = RunId.parse("20261120T140000.000000Z-00aa")
    assert await site.ask(action, RunArguments(run=run)) == {"run": run}
    assert await site.ask(action, RunArguments(run=GONE)) == "is not a run"
    assert "denied by policy" in await site.ask(action, RunArguments(), who="bob")


async def test_a_run(site: Site) -> None:
    accepted = {"accepted": True, "holds": []}
    assert await site.ask("runonce", RunOnce(noop=True, tags=("web",))) == accepted
    assert site.runs == [("choria=alice", True, ("web",))]
    site.problem = "20000 causes wait for a run already"
    assert await site.ask("runonce", RunOnce()) == site.problem


async def test_a_hold_and_its_end(site: Site) -> None:
    found = await site.ask("disable", Disable(message="migration", length="2h"))
    assert found["hold"]["owner"] == "choria=alice"
    assert found["hold"]["until"] == "2026-11-20T16:00:00.000000Z"
    assert [hold.reason for hold in site.holds.active()] == ["migration"]
    assert (await site.ask("runonce", RunOnce()))["holds"] == [found["hold"]]
    assert (await site.ask("disable", Disable(message="for ever")))["hold"]["until"] is None
    assert [hold.reason for hold in site.holds.active()] == ["for ever"], "one of each owner"
    ended = await site.ask("enable", NoArguments(), who="bob")
    assert ended["ended"] == [], "callers end only their own hold"
    assert [hold["reason"] for hold in ended["holds"]] == ["for ever"]
    ended = await site.ask("enable", NoArguments())
    assert [hold["reason"] for hold in ended["ended"]] == ["for ever"]
    assert site.holds.active() == []
    assert site.changes == 4


async def test_a_failed_write_is_an_error_in_the_reply(site: Site, tmp_path: Path) -> None:
    (tmp_path / "holds").write_text("no directory")
    error = await site.ask("disable", Disable(message="migration"))
    assert isinstance(error, str)
    assert error.isprintable()


async def test_rejected_requests_get_no_reply(site: Site) -> None:
    _, token = ask(site.alice.signer, NODE, "runonce", RunOnce(), clock=site.clock)
    forged = ask(person("alice").signer, NODE, "runonce", RunOnce(), clock=site.clock)[1]
    elsewhere = ask(
        site.alice.signer, NodeName("x.example.net"), "runonce", RunOnce(), clock=site.clock
    )[1]
    for bad in (b"", b"rubbish", token[:-3], forged, elsewhere):
        assert await site.desk.serve(bad) is None
    assert await site.desk.serve(token) is not None
    assert await site.desk.serve(token) is None, "a second time"
    assert len(site.runs) == 1
    levels = [level for level, text in site.log.lines if "refused a request" in text]
    assert levels == ["warning"] * 5 + ["info"], "the bus may deliver a request again"


async def test_a_rollout_has_a_separate_hold_whose_owner_the_node_sets(site: Site) -> None:
    rollout = RolloutReference(id=RolloutId("20261122T110000Z-0a1b"), epoch=2)
    owner = "choria=alice/rollout/20261122T110000Z-0a1b"
    await site.ask("disable", Disable(message="mine"))
    found = await site.ask("disable", Disable(message="r", length="10m", rollout=rollout))
    assert found["hold"]["owner"] == owner
    assert [hold.owner for hold in site.holds.active()] == ["choria=alice", owner]
    site.clock.advance(60)
    renewed = await site.ask("disable", Disable(message="r", length="10m", rollout=rollout))
    assert renewed["hold"]["since"] == found["hold"]["since"]
    assert renewed["hold"]["until"] > found["hold"]["until"]
    ended = await site.ask("enable", Enable(rollout=rollout))
    assert [hold["owner"] for hold in ended["ended"]] == [owner]
    assert [hold.owner for hold in site.holds.active()] == ["choria=alice"]
    site.rollout.held = "on hold: work"
    asked = Disable(message="r", length="10m", rollout=rollout)
    assert await site.ask("disable", asked) == "on hold: work"
    assert site.rollout.asked == [("hear", owner, 2)] * 4
    step = RolloutStep(id=rollout.id, epoch=2, step=7)
    asked_step = await site.ask("runonce", RunOnce(rollout=step))
    assert asked_step == {"accepted": True, "step": {"run": None}}
    assert site.rollout.asked[-1] == ("run", owner, 7)
    assert site.runs == []


async def test_acting_for_the_caller_of_a_rollout_requires_the_right_takeover(site: Site) -> None:
    rollout = RolloutReference(
        id=RolloutId("20261122T110000Z-0a1b"), epoch=2, caller=site.alice.name.caller
    )
    owner = "choria=alice/rollout/20261122T110000Z-0a1b"
    asked = Disable(message="r", length="10m", rollout=rollout)
    assert (await site.ask("disable", asked, who="bob"))["hold"]["owner"] == owner
    assert await site.ask("enable", Enable(rollout=rollout), who="bob")
    denied = await site.ask("enable", Enable(rollout=rollout), who="carol")
    assert str(denied).startswith("denied by policy line 1 (default): choria=carol takeover (")
    # Callers need no such right for their own rollout, even if the request names a caller.
    own = replace(rollout, caller="choria=carol")
    assert await site.ask("enable", Enable(rollout=own), who="carol")


async def test_a_caller_can_query_its_rights(site: Site) -> None:
    asked = StatusRequest(may=("status", "enable", "log"))
    assert await site.ask("status", asked) == {
        "state": "idle",
        "denied": {},
        "durations": [12.5, 10.0],
        "awaits_entries": True,
        "reports_changes": True,
    }
    site.rollout.awaits = False
    assert (await site.ask("status", asked))["awaits_entries"] is False
    assert "denied by policy" in await site.ask("status", asked, who="bob"), "status itself"


async def test_a_caller_can_query_the_controller_of_a_rollout(site: Site) -> None:
    """For the caller's own rollouts, or with the right takeover; the node records no query."""
    rollout = RolloutReference(id=RolloutId("20261122T110000Z-0a1b"), epoch=1)
    told = await site.ask("status", StatusRequest(rollout=rollout))
    controller = {"epoch": 2, "by": f"choria=alice/rollout/{rollout.id}", "since": "now"}
    assert told == {"state": "idle", "rollout_controller": controller}
    others = StatusRequest(rollout=replace(rollout, caller="choria=bob"))
    assert "takeover" in await site.ask("status", others)
    assert site.rollout.asked == []


async def test_the_reply_for_an_ended_step_has_its_changes_on_request(site: Site) -> None:
    """If the node cannot report the changes, the reply says why: the request was for the step."""
    rollout = RolloutStep(id=RolloutId("20261122T110000Z-0a1b"), epoch=1, step=2)
    args = RunOnce(noop=True, rollout=rollout, changes_salt="5a" * 16)
    assert "changes" not in await site.ask("runonce", args)
    site.rollout.over = "20261120T140000.000000Z-00aa"
    assert (await site.ask("runonce", args))["changes"] == {"total": 3}
    assert site.asked_of == [(site.rollout.over, "5a" * 16)]
    assert "changes" not in await site.ask("runonce", RunOnce(noop=True, rollout=rollout))
    site.rollout.over = str(GONE)
    assert (await site.ask("runonce", args))["changes"] == {"problem": "is not a run"}


async def test_a_node_with_its_own_run_command_reports_no_changes(tmp_path: Path) -> None:
    site = Site(tmp_path, ours=False)
    site.rollout.over = "20261120T140000.000000Z-00aa"
    rollout = RolloutStep(id=RolloutId("20261122T110000Z-0a1b"), epoch=1, step=2)
    told = await site.ask("runonce", RunOnce(noop=True, rollout=rollout, changes_salt="5a" * 16))
    assert told["changes"] == {"problem": "a command of the site's own runs here"}
    told = await site.ask("status", StatusRequest(may=("status",)))
    assert told["reports_changes"] is False


async def test_actions_are_audited_and_reads_are_not(site: Site) -> None:
    assert await site.ask("status", NoArguments()) == {"state": "idle"}
    assert await site.ask("last_run_summary", NoArguments()) == {"id": "1"}
    assert "asked for status by choria=alice" in site.log.text
    assert (site.audited, site.changes) == ([], 0)
    values = {"shop": {"greeting": "sesame"}}
    args = Deploy(
        release=ReleasePath("foo/tags/r2"), action=DeployAction.APPLY, serial=2, classes=values
    )
    rollout = RolloutStep(id=RolloutId("20261122T110000Z-0a1b"), epoch=2, step=3)
    await site.ask("disable", Disable(message="disk is full", length="7200"))
    await site.ask("runonce", RunOnce(noop=True, tags=("web",)), who="bob")
    await site.ask("deploy", args)
    for _ in range(2):  # a rollout asks until the step is over
        await site.ask("runonce", RunOnce(rollout=rollout))
    for chunk, digest in ((0, ""), (1, "5a" * 32)):
        await site.ask("capture", ChunkArguments(chunk=chunk, digest=digest))
    await site.ask("report", RunArguments(run=GONE))
    await site.desk.serve(b"rubbish")
    found = [
        (one.caller, one.action, one.subject, str(one.decision), one.times) for one in site.audited
    ]
    assert found == [
        ("choria=alice", "disable", "disk is full, for 2h", "accepted", 1),
        ("choria=bob", "runonce", "noop, tag web", "refused", 1),
        ("choria=alice", "deploy", "foo/tags/r2", "refused", 1),  # no right to values
        ("choria=alice", "runonce", f"rollout {rollout.id} step 3", "accepted", 1),
        ("choria=alice", "runonce", f"rollout {rollout.id} step 3", "accepted", 2),
        ("choria=alice", "capture", "", "refused", 1),
        ("choria=alice", "capture", "", "refused", 2),  # replaces the one before
        ("choria=alice", "report", f"run {GONE}", "refused", 1),
        ("", "", "", "refused", 1),
    ]
    assert "denied by policy" in site.audited[1].reason
    assert site.audited[-2].reason == "is not a run"
    assert "sesame" not in repr(site.audited)
