"""`localpuppet assign`, and the requests of other commands: ask other nodes, show their replies.

If a node of another version sends another form, its fields are shown one by one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.converter import from_record
from localpuppet.base.formats.names import NodeName, ReleasePath, did_you_mean
from localpuppet.base.formats.text import folded, shown_names
from localpuppet.base.formats.times import parse_duration, show_duration
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.fleet.requests.request import PATIENCE
from localpuppet.fleet.triggers.cause import succeeded
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import SOME, command, flag, option, path_type, selects_nodes
from localpuppet.node.cli.history import sections
from localpuppet.node.cli.node_setup import complete_release
from localpuppet.node.node_ports import NodeSelection
from localpuppet.node.runs.holds import Hold
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_replies import RunReport

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.fleet.requests.request import Arguments, Deploy
    from localpuppet.fleet.requests.request_client import NodeAnswer
    from localpuppet.node.enc.document import Classes

    # Node → the end of its run, as a published outcome; `None` if it did not arrive in time.
    Ends = dict[str, dict[str, Any] | None]
    Wait = Callable[[KeyValue, Mapping[str, NodeAnswer]], Awaitable[Ends]]


TICK = 0.25


@asynccontextmanager
async def shown(observer: render.QuietObserver) -> AsyncGenerator[None, None]:
    """Show an observer's progress line, with the elapsed seconds, until the block ends."""
    observer.begin()
    ticking = asyncio.create_task(_tick(observer))
    try:
        yield
    finally:
        ticking.cancel()
        observer.close()


def whom(names: Sequence[str]) -> str:
    """Return the name of a single node, or the number of nodes."""
    return names[0] if len(names) == 1 else render.counted(len(names), "node")


async def _tick(observer: render.QuietObserver) -> None:
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        observer.tick(clock() - begun)
        await asyncio.sleep(TICK)


SHOWN = 20  # resources of each kind
MARGIN = 2  # columns before each line below a node's name


def shown_reply(
    action: str, result: Mapping[str, Any], now: datetime, limit: int | None = None
) -> tuple[str, str]:
    """Return a word for the result, and the lines below it, if any; at most `limit` of a kind."""
    try:
        return _shown_reply(action, result, now, limit)
    except (AttributeError, KeyError, TypeError, ValueError, StateError, InvalidInputError):
        return render.word("ok"), render.mapping_lines(result)


def _shown_reply(
    action: str, result: Mapping[str, Any], now: datetime, limit: int | None
) -> tuple[str, str]:
    if action == "runonce" and result["accepted"] is True:
        holds = result.get("holds") or []  # an earlier version does not send them
        return "accepted, runs when the hold ends" if holds else "accepted", _left(holds)
    if action == "disable":
        return f"on hold: {_hold(result['hold'])}", ""
    if action == "enable":
        ended = [f"ended: {_hold(raw)}" for raw in result["ended"]]
        return "; ".join(ended) or "you had no hold here", _left(result["holds"])
    if action == "log":
        return render.word("ok"), _log(result, limit)
    if action == "report":
        report = from_record(RunReport, result)
        status = Status.from_dict(report.run)
        return render.word(str(status.outcome or status.state)), _report(
            report, now, limit or SHOWN
        )
    return _state(result, now)


def _log(reply: Mapping[str, Any], limit: int | None) -> str:
    folded_lines = [*folded(reply["lines"])][-(limit or 0) :]
    lines = [render.puppet_line(render.user_text(line)) for line in folded_lines]
    if reply["before"]:
        lines.insert(0, f"… {render.counted(int(reply['before']), 'line')} before this")
    if reply["left_out"]:
        lines.append(f"left out: {render.counted(int(reply['left_out']), 'line')} of diffs")
    return "\n".join([f"run {render.user_text(reply['run'])}", *lines])


def _report(reply: RunReport, now: datetime, limit: int) -> str:
    resources = [*reply.failed, *reply.changed, *reply.would_change, *reply.skipped]
    parts = [render.pairs(render_run.rows(Status.from_dict(reply.run), now), MARGIN)]
    if not reply.report:
        ended = Status.from_dict(reply.run).state is RunState.FINISHED
        why = "Puppet wrote none" if ended else "the run is active"
        parts.append(f"no report of this run: {why}")
    parts += sections(resources, limit, margin=MARGIN)
    if reply.left_out:
        more = render.counted(reply.left_out, "resource")
        parts.append(f"{more} more: there was no room for them")
    return "\n".join(parts)


def _state(reply: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    last = None if reply["last_run"] is None else from_record(RunEnd, reply["last_run"])
    rows = [("Cause", render.user_text(reply["cause"] or ""))]
    if reply["waiting"]:
        rows.append(("Waiting", render.counted(int(reply["waiting"]), "cause")))
    if reply.get("blocked"):
        rows.append(("Blocked", render.user_text(reply["blocked"])))
    if last is not None:
        ended = show_duration(round(max(0.0, now.timestamp() - last.finished_at)))
        noop = " (noop)" if last.noop else ""
        outcome = render.word(str(last.outcome or last.kind))
        rows += [
            ("Last run", f"{outcome}{noop}, {ended} ago  [run {last.run}]"),
            ("Reason", last.reason),
            ("Release", last.release),
            ("Tree", render.user_text(reply["release_digest"] or "")),
        ]
    assignment = reply.get("assignment")
    if assignment:
        by = f"by {assignment['by']} at {render_run.moment(assignment['at'])}"
        serial = f"(serial {assignment['serial']})"
        rows.append(("Assigned", render.user_text(f"{assignment['release']} {by} {serial}")))
    confirmation = reply.get("confirmation")
    if confirmation:
        rows.append(("Confirmation", render.user_text(confirmation_line(confirmation))))
    rollback = reply.get("rollback")
    if rollback:
        by = f"by {rollback['user']} at {render_run.moment(rollback['since'])}"
        text = f"rolled back to {rollback['release']} {by}"
        if last is None or last.release != rollback["release"]:
            text += ", not applied yet"
        input_release = f"the input names {rollback['input_release']}"
        rows.append(("Rollback", render.user_text(f"{text}; {input_release}")))
    rows.append(("Version", render.user_text(reply["version"])))
    lines = [render.pairs(rows, MARGIN), _left(reply["holds"])]
    return render.word(render.user_text(reply["state"])), "\n".join(filter(None, lines))


def confirmation_line(confirmation: Mapping[str, Any]) -> str:
    """Return the state of a deployed release's confirmation, as a node reports it."""
    reason = f" ({confirmation['reason']})" if confirmation["reason"] else ""
    return f"{confirmation['release']} {confirmation['stage']}{reason}"


def _left(holds: list[Mapping[str, Any]]) -> str:
    return render.pairs([("On hold", _hold(raw)) for raw in holds], MARGIN)


def _hold(raw: Mapping[str, Any]) -> str:
    return render.user_text(Hold.from_dict(raw))


def chosen(
    node: NodeApp,
    selection: NodeSelection,
    *,
    acts: bool,
    short: bool = True,
    among: Collection[NodeName] = (),
) -> list[NodeName]:
    """Return the nodes of a selection.

    Args:
        acts: Whether the command acts on them: it first prints names that differ from the words.
        short: Whether a short name means the one known node that it fits.
        among: The nodes if none is selected, and those that an earlier rollout may select.

    Raises:
        InvalidInputError: A name fits no known node, or several; or no node is selected.
        UnavailableError: No bus is configured, or it is unreachable.
    """
    fleet = FleetApp(node)
    fleet.require_bus(selection.nodes)
    words = [*dict.fromkeys(selection.nodes)]
    names = [NodeName.parse(word) for word in words]
    without = [NodeName.parse(word) for word in selection.without]
    without = run(known_nodes(fleet, without, short=short)) if without else []
    groups = []
    if selection.query is not None or selection.roles:
        groups.append(matching(fleet, query=selection.query, roles=selection.roles))
    if selection.failed_in is not None:
        failed = frozenset(node.failed_in(selection.failed_in))
        groups.append(failed.intersection(among) if among else failed)
    if names:
        names = run(known_nodes(fleet, names, short=short))
        groups = [group.intersection(names) for group in groups]
    selected = frozenset.intersection(*groups) if groups else frozenset(names or among)
    names = [name for name in names or sorted(selected) if name in selected.difference(without)]
    if not names:
        raise InvalidInputError(
            "the selection matches no node",
            hint="a node must match each part; see 'localpuppet nodes'",
        )
    if acts and names != words:
        render.say(f"# {render.counted(len(names), 'node')}: {', '.join(names)}", err=True)
    return names


def matching(
    fleet: FleetApp, *, query: str | None = None, roles: Sequence[str] = ()
) -> frozenset[NodeName]:
    """Return the nodes of the inventory that match a query and have one of some roles."""
    from localpuppet.fleet.inventory.query.functions import FunctionCall

    wanted, unknown = {*roles}, list[str]()
    known = set[str]()

    def read(reader: "InventoryReader") -> frozenset[NodeName]:
        groups = []
        if query is not None:
            answer = FunctionCall.of("query", [query]).answer(reader)
            groups.append(frozenset(map(NodeName, answer.names)))
            unknown.extend(answer.unknown)
        if roles:
            nodes = [*reader.nodes()]
            known.update(*(one.roles for one in nodes))
            groups.append(frozenset(one.node for one in nodes if wanted & {*one.roles}))
        return frozenset.intersection(*groups)

    found = run(fleet.entries.answer(read, render.note)).answer
    for text in unknown:
        render.note(f"warning: {text}")
    for role in sorted(wanted - known):
        raise InvalidInputError(
            f"no node has the role {role}", where="--role", hint=did_you_mean(role, [*known])
        )
    return found


async def known_nodes(fleet: FleetApp, words: Sequence[NodeName], *, short: bool) -> list[NodeName]:
    """Return the names of known nodes that words mean.

    Known are the nodes whose keys are pinned here, those of this node's copy of the inventory, and
    those on the bus. If the bus denies to look, a word is taken as it is.
    """
    from localpuppet.fleet.inventory import presence, view

    known = {str(name) for name in fleet.identity.trusted.names()}
    with suppress(LocalpuppetError):
        known.add(fleet.name)
    with suppress(StateError):  # of a view that cannot be read
        if (fleet.state / view.FILE).exists():
            with closing(fleet.view()) as entries:
                known |= {node.node for node in entries.nodes()}
    if known.issuperset(words):
        return [*words]
    with suppress(RefusedError):
        async with fleet.connected() as kv:
            known |= {word for word in words if word not in known and await _on_bus(kv, word)}
            if not known.issuperset(words):
                known |= {*await presence.nodes(kv)}
        return [_meant(word, sorted(known), short=short) for word in words]
    return [*words]


async def _on_bus(kv: "KeyValue", name: NodeName) -> bool:
    """Return whether the bus has an entry of a node, or its history."""
    for key in (layout.PRESENCE + name, layout.INVENTORY + name):
        if await kv.get(key) is not None:
            return True
    return bool((await kv.list(layout.history_of(name))).entries)


def _meant(word: NodeName, known: list[str], *, short: bool) -> NodeName:
    """Return the known node that a word means: its name, or a short name of only this node."""
    if word in known:
        return word
    fitting = [name for name in known if name.startswith(f"{word}.")]
    if short and len(fitting) == 1:
        return NodeName(fitting[0])
    if short and fitting:
        raise InvalidInputError(f"{word} fits several nodes: {shown_names(fitting)}")
    labels = {name.partition(".")[0]: name for name in known}
    close = get_close_matches(word, [*known, *labels], n=3)
    near = fitting or [*dict.fromkeys(labels.get(name, name) for name in close)]
    hint = f"did you mean {shown_names(near)}?" if near else "see 'localpuppet nodes'"
    raise InvalidInputError(f"there is no known node {word}", hint=hint)


def ask_nodes(
    node: NodeApp,
    names: Sequence[NodeName],
    action: str,
    args: "Arguments",
    *,
    as_json: bool,
    limit: int | None = None,
    patience: float = PATIENCE,
    wait: "Wait | None" = None,
) -> int:
    """Send a request to nodes, show each reply, and return the exit code.

    A missing reply is shown, and makes the exit code 69; a refusal and a run without a report make
    it 1.

    Args:
        wait: Returns the ends of the runs of the nodes that accepted; `None` to not wait.
    """
    fleet = FleetApp(node)
    observer = render.observer(quiet=as_json, title=f"asking {whom(names)}")

    def show_replies(answers: "Mapping[str, NodeAnswer]") -> None:
        for name, answer in answers.items():
            _show(name, action, answer.to_dict(), node.clock.now(), limit)

    async def ask() -> "tuple[dict[str, NodeAnswer], Ends]":
        async with fleet.connected() as kv:
            async with shown(observer):
                answers = await fleet.requests(kv).ask_all(names, action, args, patience=patience)
            if not as_json:
                show_replies(answers)
            if wait is None:
                return answers, {}
            return answers, await wait(kv, answers)

    answers, ends = run(ask())
    replies = {name: answer.to_dict() for name, answer in answers.items()}
    if as_json:
        outcomes = {} if wait is None else {"outcomes": ends}
        render.emit_json({"schema": 1, "action": action, "replies": replies, **outcomes})
    if any(answer.unresponsive for answer in answers.values()):
        return 69
    if None in ends.values():
        return 75
    if not all(end and succeeded(end["outcome"]) for end in ends.values()):
        return 1
    complete = all(
        reply["ok"] and (action != "report" or reply["result"].get("report") is not False)
        for reply in replies.values()
    )
    return 0 if complete else 1


def _show(name: str, action: str, reply: dict[str, Any], now: datetime, limit: int | None) -> None:
    if not reply["ok"]:
        render.say(f"{name}: {render.word('failed')}: {render.user_text(reply['error'])}", err=True)
        return

    word, lines = shown_reply(action, reply["result"], now, limit)
    render.emit(f"{name}: {word}")
    for line in lines.splitlines():
        render.emit(f"{' ' * MARGIN}{line}")
    run_record = reply["result"].get("run")
    if reply["result"].get("report") is False and isinstance(run_record, dict):
        logs = f"localpuppet logs {run_record.get('id', '')} --node {name}"
        render.emit(f"{' ' * MARGIN}'{render.user_text(logs)}' shows Puppet's output")


ASSIGN_PATIENCE = "10m"


@command(
    "assign",
    exits={0: "every node accepted the release", 1: "a node refused", 69: "a node did not answer"},
)
@selects_nodes(SOME)
@click.argument("release", shell_complete=complete_release)
@option(
    "--values FILE", "Layers and class parameters that override the nodes' own.", type=path_type()
)
@flag("--stage", "Only fetch and verify the release on the nodes.")
@flag("--allow-older", "Accept a release that is older than the node's.")
@option(
    "--wait-timeout TIME",
    "Wait at most TIME for each node.",
    default=ASSIGN_PATIENCE,
    show_default=True,
)
@flag("--json as_json", "Print the replies as JSON.")
@click.pass_obj
def assign_command(
    node: NodeApp,
    /,
    selection: NodeSelection,
    as_json: bool,
    **given: Any,  # noqa: ANN401
) -> int:
    """Give nodes a release, which each of them then runs.

    RELEASE is SOURCE/tags/TAG. The input of each NODE must have 'app: SOURCE/assigned'. Before
    anything changes, each node fetches and verifies the release and compares the values with its
    classes.

    The policy of each node must allow you `status` and `deploy:SOURCE/tags/PATTERN`, `values` for
    --values, and `older` for --allow-older.

    FILE is YAML. It crosses the bus, so put no secrets in it:
      layers: [canary]
      classes:
        shop: {port: 8081}

    Examples:
      localpuppet assign web01.example.com web02.example.com shop/tags/r7
      localpuppet assign --role web shop/tags/r7 --stage
      localpuppet assign web01.example.com shop/tags/r7 --values canary.yaml
    """
    from localpuppet.fleet.requests.request import Deploy, DeployAction
    from localpuppet.fleet.requests.request_client import deploy_to

    names = chosen(node, selection, acts=True, short=False)
    layers, classes = read_values(node, given["values"])
    args = Deploy(
        release=ReleasePath.parse(given["release"], where="RELEASE"),
        action=DeployAction.STAGE if given["stage"] else DeployAction.APPLY,
        serial=1,
        layers=layers,
        classes=classes,
        allow_older=given["allow_older"],
    )
    patience = parse_duration(given["wait_timeout"], where="--wait-timeout")
    fleet = FleetApp(node)
    observer = render.observer(quiet=as_json, title=f"{args.release} for {whom(names)}")

    async def ask() -> "dict[str, NodeAnswer]":
        async with shown(observer), fleet.connected() as kv:
            return await deploy_to(fleet.requests(kv), names, args, patience=patience)

    answers = run(ask())
    if as_json:
        replies = {name: answer.to_dict() for name, answer in answers.items()}
        render.emit_json({"schema": 1, "release": args.release, "replies": replies})
    else:
        for name, answer in answers.items():
            _show_assigned(name, answer, args)
    if any(answer.unresponsive for answer in answers.values()):
        return 69
    return 0 if all(answer.ok for answer in answers.values()) else 1


def read_values(node: NodeApp, file: Path | None) -> "tuple[tuple[str, ...], Classes]":
    """Return the layers and classes in a file of values; none without a file."""
    if file is None:
        return (), {}
    from localpuppet.base.machine.files import read_user_file
    from localpuppet.node.enc.document import EncData

    raw = node.documents.parse(read_user_file(file), schema="values", where=str(file))
    layers = tuple(cast("list[str]", raw.get("layers") or []))
    return layers, EncData.from_dict(raw, where=str(file)).classes


def _show_assigned(name: str, answer: "NodeAnswer", args: "Deploy") -> None:
    from localpuppet.fleet.requests.request import DeployAction

    if not answer.ok:
        error = render.user_text(str(answer.to_dict()["error"]))
        render.say(f"{name}: {render.word('failed')}: {error}", err=True)
    elif args.action is DeployAction.STAGE:
        render.emit(f"{name}: has {args.release}, and could take it")
    else:
        render.emit(f"{name}: took {args.release}; its run follows")
