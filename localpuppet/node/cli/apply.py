"""`localpuppet apply` and `try`: run Puppet once."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId, parse_tags
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.value import Value
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import Command, command, flag, option, options, path_type, user
from localpuppet.node.cli.node_setup import complete_run
from localpuppet.node.runs.run import Outcome, RunState, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from localpuppet.node.runs.preparing import PreparedRun


_REST = "localpuppet.rest"
noop_option = flag("--noop", "Change nothing; show what would change.")
timeout_option = option("--timeout TIME", "End Puppet after TIME.  [default: timeouts.run, or 1h]")
verbose_option = flag("-v --verbose", "On a terminal, also show Puppet's whole command.")
exit_codes_option = flag(
    "--detailed-exitcodes",
    "Exit as Puppet does: 0 unchanged, 2 changed, 4 failed, 6 changed and failed.",
)
json_option = flag("--json as_json", "Print JSON, and nothing else.")


class RestCommand(Command):
    """Keeps the words behind `--` in `ctx.meta[_REST]`: they are options for Puppet."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--`."""
        if "--" in args:
            index = args.index("--")
            ctx.meta[_REST] = tuple(args[index + 1 :])
            args = args[:index]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PUPPET OPTIONS]"]


def rest(ctx: click.Context) -> tuple[str, ...]:
    """Return the options for Puppet after `--`."""
    from localpuppet.node.puppet.command_line import check_extra

    extra: tuple[str, ...] = ctx.meta.get(_REST, ())
    check_extra(extra)
    return extra


@command("apply", RestCommand, exits={1: "", 3: "", 69: "", 75: "", 130: ""})
@click.argument("source", metavar="[INPUT|-|https://…|userdata:]", required=False)
@options(
    "Run",
    noop_option,
    option("--tags TAGS", "Apply only resources with one of these tags (a,b)."),
    timeout_option,
    option(
        "--install PACKAGE",
        "First install this .deb or .rpm, and take the release from it.",
        type=path_type(),
    ),
    flag("--allow-older", "Accept a release that is older than the last one."),
    flag("--despite-hold", "With --noop: run although the node is on hold."),
    option("--cause TEXT", "The reason for this run, for 'why'.", default="manual"),
)
@options(
    "Output",
    flag("--detach", "Print the run's id and return at once."),
    verbose_option,
    exit_codes_option,
    json_option,
)
@click.pass_context
def apply_command(
    ctx: click.Context,
    source: str | None,
    install: Path | None,
    noop: bool,
    despite_hold: bool,
    verbose: bool,
    timeout: str | None,
    tags: str | None,
    detach: bool,
    detailed_exitcodes: bool,
    allow_older: bool,
    as_json: bool,
    cause: str,
) -> int:
    """Apply the release that INPUT names to this node.

    INPUT is a file (default: input.yaml in the root directory), '-' for standard input, an https
    URL, or 'userdata:' for the cloud's user data. If the release is not on this node, localpuppet
    fetches and verifies it first. One run at a time is active on a node.

    localpuppet records the run: see 'status', 'logs', 'report' and 'why'.

    Examples:
      localpuppet apply                              input.yaml of the root
      localpuppet apply other-input.yaml --noop      show what would change
      localpuppet apply --noop --despite-hold        also if the node is on hold
      curl … | localpuppet apply -                   input from standard input
      localpuppet apply https://enc.example.com/web01.yaml
      localpuppet apply userdata:                    input from the cloud
      run=$(localpuppet apply --detach); localpuppet status --wait "$run"
      localpuppet apply --timeout 10m -- --debug     options for Puppet
    """
    from localpuppet.node.runs.options import RunOptions

    node: NodeApp = ctx.obj
    if despite_hold and not noop:
        raise click.UsageError("--despite-hold requires --noop")
    seconds = None if timeout is None else parse_duration(timeout, where="--timeout")
    run_options = RunOptions(
        noop=noop,
        tags=None if tags is None else parse_tags(tags),
        extra=rest(ctx),
        timeout=seconds or node.settings.timeouts.run,
        user=user(),
        cause=parse_line(cause, what="cause"),
        despite_hold=despite_hold,
    )
    shown = RunDisplay(verbose=verbose, as_json=as_json, detach=detach, detailed=detailed_exitcodes)
    with node.attempts.record_refusal(run_options, source) as set_release:
        prepared = node.preparation().prepare(
            run_options,
            source=source,
            package=install,
            allow_older=allow_older,
            set_release=set_release,
        )
        status = supervise(node, prepared, shown)
    return show_result(node, status, shown)


class RunDisplay(Value):
    """How `apply` shows a run."""

    verbose: bool
    as_json: bool
    detach: bool
    detailed: bool


def supervise(node: NodeApp, prepared: "PreparedRun", shown: RunDisplay) -> Status:
    """Run a prepared run, show its progress, and return its final status."""

    def announce(run: RunId) -> None:
        if shown.as_json:
            render.emit_json({"schema": 1, "id": run})
        else:
            render.emit(run)
        sys.stdout.flush()

    def apart(run: RunId) -> "Callable[[], None]":
        from localpuppet.base.machine.processes import detach

        return detach(lambda: announce(run))

    release = prepared.release.name
    observer = render.observer(
        quiet=shown.as_json or shown.detach,
        title=f"applying {release}",
        short="" if shown.verbose else _short(release, prepared.options.noop),
    )
    supervisor = node.supervisor(observer)
    node.processes.watch_signals()
    try:
        return supervisor.apply(prepared, detach=apart if shown.detach else None)
    finally:
        observer.close()


def show_result(node: NodeApp, status: Status, shown: RunDisplay) -> int:
    """Show the result of a run, and return the exit code."""
    text = render.as_json(status.to_dict()) if shown.as_json else render_run.result(status)
    # A run that never started is an error like any other; --detach has no id to wait for then.
    render.say(text, err=not shown.as_json and not status.puppet_started)
    if node.processes.interrupted and status.outcome is Outcome.CANCELLED:
        return 130
    return exit_code(status, detailed=shown.detailed)


def _short(release: str, noop: bool) -> str:
    """Return a short form of the command, for people."""
    noop_option = " --noop" if noop else ""
    hint = "whole command: -v, or 'localpuppet why --full'"
    return f"# puppet apply{noop_option} of {release} ({hint})"


def exit_code(status: Status, *, detailed: bool) -> int:
    """Return the exit code for a finished run.

    Args:
        detailed: Use Puppet's 0/2/4/6 if Puppet returned one that its report confirms.
    """
    if detailed and status.exit_code in ((0, 2) if status.succeeded else (4, 6)):
        return status.exit_code or 0
    return 0 if status.succeeded else 1


@command("cancel", exits={1: "you may not end the run"})
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@click.pass_obj
def cancel_command(node: NodeApp, run: str | None) -> None:
    """End a run of this node.

    RUN is the id of a run, also of one with --detach or of the agent; the default is the newest.
    Puppet gets the same signals as with ^C, and the run is recorded as cancelled.

    Examples:
      localpuppet cancel
      localpuppet cancel 7f3a; localpuppet status --wait
    """
    import signal

    status = node.records.status(node.records.get(run))
    if status.state is not RunState.FINISHED and status.supervisor is not None:
        supervisor = ProcessId.from_dict(status.supervisor)
        with suppress(ProcessLookupError):
            process = os.pidfd_open(supervisor.pid)
            try:
                if node.processes.alive(supervisor):  # it, and not another one with its number
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    render.emit(f"cancelling {status.id}: see 'localpuppet status --wait'")
                    return
            finally:
                os.close(process)
    raise InvalidInputError(f"the run {status.id} is over", hint="see 'localpuppet status'")


@command("try", RestCommand, exits={1: "", 3: "", 69: "", 75: "", 130: ""})
@click.argument(
    "directory",
    metavar="[DIR]",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@noop_option
@option(
    "--input source INPUT",
    "Take classes and parameters from this input: a file, '-' or https://…  "
    "[default: the node's input, if it has one]",
)
@timeout_option
@verbose_option
@exit_codes_option
@json_option
@click.pass_context
def try_command(
    ctx: click.Context,
    /,
    directory: Path,
    source: str | None,
    timeout: str | None,
    **flags: bool,
) -> int:
    """Run an unreleased work tree on this node.

    DIR (default: the current directory) is the work tree; uncommitted changes count. Its
    manifest.lock pins its modules. localpuppet ignores the release that the input names.

    localpuppet supervises and records the run, but a work tree is not a release: 'rollback' never
    returns to it, and the run triggers no other node. The next 'apply' applies the release of the
    input again; 'disable' prevents that.

    Examples:
      localpuppet try --noop              show what this work tree would change
      localpuppet try ../control --noop
      localpuppet try --input web01.yaml --noop
      localpuppet try -- --debug          options for Puppet
    """
    from localpuppet.node.runs.options import RunOptions

    node: NodeApp = ctx.obj
    seconds = None if timeout is None else parse_duration(timeout, where="--timeout")
    options = RunOptions(
        noop=flags["noop"],
        tags=None,
        extra=rest(ctx),
        timeout=seconds or node.settings.timeouts.run,
        user=user(),
        cause="try",
    )
    shown = RunDisplay(
        verbose=flags["verbose"],
        as_json=flags["as_json"],
        detach=False,
        detailed=flags["detailed_exitcodes"],
    )
    with node.attempts.record_refusal(options, source) as set_release:
        prepared = node.preparation().prepare_work_tree(
            options, directory=directory, source=source, set_release=set_release
        )
        status = supervise(node, prepared, shown)
    return show_result(node, status, shown)
