"""The options of `localpuppet rollout run` that define how a rollout runs."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, split_tags
from localpuppet.base.formats.times import parse_duration
from localpuppet.node.cli.command import flag, option, options
from localpuppet.node.cli.completion import complete_release
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.rollout.execution.delivery import Delivery
    from localpuppet.rollout.execution.events import RolloutBegan
    from localpuppet.rollout.execution.options import RolloutOptions
    from localpuppet.rollout.plans.check import Check
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts

# The options that --failed-in takes from the earlier rollout.
_TAKEN = (
    "canary",
    "batch",
    "window",
    "max_failures",
    "noop",
    "tags",
    "skip_unready",
    "checks",
    "on_failure",
    "pause",
    "pause_at_most",
    "investigate",
    "one_at_a_time_by",
    "release",
    "values",
    "allow_older",
)
_RELEASE = options(
    "Release",
    option(
        "--release RELEASE",
        "Give this release (SOURCE/tags/TAG) to the nodes, and run it.",
        shell_complete=complete_release,
    ),
    option(
        "--values FILE",
        "Layers and class parameters for the release: see 'localpuppet assign --help'.",
        type=click.Path(path_type=Path),
    ),
    flag("--allow-older", "Accept a release that is older than the nodes'."),
)
_PACE = options(
    "Order and speed",
    option("--canary N", "Run N nodes of each group first.", type=click.IntRange(min=1)),
    option("--batch N|N%", "Run N nodes of a group together, then the next N."),
    option(
        "--window N",
        "Run at most N nodes of a group at a time; start the next when one ends.",
        type=click.IntRange(min=1),
    ),
    option(
        "--one-at-a-time-by FACT",
        "Do not run nodes with different values of this fact (such as a zone) together.",
    ),
    option(
        "--until WHEN",
        "Start no run that would end after WHEN, by the length of the node's last good runs: "
        "'06:00 Europe/Berlin', 2026-11-22T06:00+01:00.",
    ),
)
_FAILURES = options(
    "Failures and pauses",
    option(
        "--check checks URL|COMMAND",
        "Check this after each node's run; '%{node}' is its name (repeatable).",
        multiple=True,
    ),
    option("--max-failures N|N%", "Allow N nodes to fail.  [default: 0]"),
    option(
        "--on-failure",
        "If more nodes fail: stop; pause until you decide; or stop, and roll the release "
        "back.  [default: stop]",
        type=click.Choice(["stop", "pause", "rollback"]),
    ),
    option(
        "--pause",
        "Pause after the canaries of each group, or after each group (repeatable).",
        multiple=True,
        type=click.Choice(["canaries", "groups"]),
    ),
    option("--pause-at-most TIME", "Stop the rollout after a pause of TIME.  [default: 1h]"),
    option("--investigate TIME", "Keep failed nodes on hold for TIME after the end, up to 1d."),
    option("--wait-timeout TIME", "Wait at most TIME for the result of each run.  [default: 1h]"),
    flag("--skip-unready", "Leave out nodes that are not ready, instead of running no node."),
)
_PUPPET = options(
    "Puppet runs",
    flag("--noop", "Change nothing; show what would change, and its digest."),
    option("--tags TAGS", "Apply only resources with one of these tags (a,b)."),
)


def how_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options for how a rollout runs to a command."""
    return _RELEASE(_PACE(_FAILURES(_PUPPET(command))))


def new_options(node: NodeWiring, given: dict[str, Any]) -> "RolloutOptions":
    """Return the options of a new rollout.

    Raises:
        InvalidInputError: An option is invalid, or contradicts another.
    """
    from localpuppet.rollout.execution.amount import Amount
    from localpuppet.rollout.execution.options import (
        NONE,
        PAUSE_AT_MOST,
        TIMEOUT,
        OnFailure,
        PauseAfter,
        RolloutOptions,
    )

    batch, failures, on_failure = given["batch"], given["max_failures"], given["on_failure"]
    return RolloutOptions(
        canary=given["canary"] or 0,
        batch=None if batch is None else Amount.parse(batch, what="--batch"),
        window=given["window"],
        max_failures=NONE
        if failures is None
        else Amount.parse(failures, what="--max-failures", minimum=0),
        noop=given["noop"],
        tags=split_tags(given["tags"]),
        timeout=_seconds(given, "wait_timeout") or TIMEOUT,
        skip_unready=given["skip_unready"],
        checks=_checks(given["checks"]),
        on_failure=OnFailure(on_failure or OnFailure.STOP),
        pause=tuple(map(PauseAfter, dict.fromkeys(given["pause"]))),
        pause_at_most=_seconds(given, "pause_at_most") or PAUSE_AT_MOST,
        investigate=_seconds(given, "investigate"),
        one_at_a_time_by=given["one_at_a_time_by"],
        until=_until(node, given["until"]),
        delivery=_delivery(node, given),
    )


def _until(node: NodeWiring, text: str | None) -> "datetime | None":
    from localpuppet.rollout.execution.until import parse_until

    return None if text is None else parse_until(text, now=node.clock.now(), where="--until")


def _delivery(node: NodeWiring, given: dict[str, Any]) -> "Delivery | None":
    from localpuppet.rollout.execution.delivery import Delivery

    if given["release"] is None:
        if given["values"] is not None or given["allow_older"]:
            raise click.UsageError("--values and --allow-older require --release")
        return None
    from localpuppet.fleet.cli.assign import read_values

    layers, classes = read_values(node, given["values"])
    release = ReleasePath.parse(given["release"], where="--release")
    return Delivery(
        release=release, layers=layers, classes=classes, allow_older=given["allow_older"]
    )


def _seconds(given: dict[str, Any], name: str) -> float | None:
    text = given[name]
    return None if text is None else parse_duration(text, what=f"--{name.replace('_', '-')}")


def _checks(texts: tuple[str, ...]) -> "tuple[Check, ...]":
    from localpuppet.rollout.plans.check import parse_text
    from localpuppet.rollout.plans.site import MAX_CHECKS

    if len(texts) > MAX_CHECKS:
        raise InvalidInputError(f"at most {MAX_CHECKS} are allowed", where="--check")
    return tuple(parse_text(text, where="--check") for text in texts)


def options_of_parent(
    node: NodeWiring, rollouts: "FleetRollouts", given: dict[str, Any]
) -> "tuple[RolloutOptions, RolloutBegan, frozenset[NodeName]]":
    """Return the options and first event of the `--failed-in` rollout, and the nodes to repeat.

    Raises:
        InvalidInputError: It is not over, or all of its nodes succeeded.
    """
    from localpuppet.rollout.execution.events import REPEATED
    from localpuppet.rollout.execution.report import RolloutReport

    if any(given[name] for name in _TAKEN):
        raise click.UsageError("--failed-in takes the options of the earlier rollout")
    parent = RolloutId.parse(given["parent"])
    journal = rollouts.journals.open(parent)
    report = RolloutReport.of(journal.events(), taken=journal.taken)
    journal.close()
    if report.state.over is None:
        raise InvalidInputError(
            f"is not over: {report.word}", where=str(parent), hint="resume it, or stop it"
        )
    results = report.state.results()
    nodes = frozenset(node for node, result in results.items() if result in REPEATED)
    if not nodes:
        raise InvalidInputError("no node failed: nothing to repeat", where=str(parent))
    earlier = report.state.began.options
    timeout = _seconds(given, "wait_timeout") or earlier.timeout
    again_options = replace(earlier, until=_until(node, given["until"]), timeout=timeout)
    return again_options, report.state.began, nodes
