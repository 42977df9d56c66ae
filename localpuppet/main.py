"""The command `localpuppet`: load commands, and print errors in one line.

This is the composition root: it connects the ports of a node with the layers above.
"""

import codecs
import gc
import io
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet import __version__
from localpuppet.base.errors import ROOT_HINT, LocalpuppetError, thread_shortage
from localpuppet.base.formats.names import RolloutId, suggest
from localpuppet.node.cli import render
from localpuppet.node.cli.command import COLORS, JSON, CommandGroup, flag, option, other_words

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.node.app import NodeApp, SectionReader
    from localpuppet.node.node_ports import CommandAdditions, Neighbours

# Title in the help → command → module, in which the function is called COMMAND_command.
SECTIONS = {
    "This node": {
        "apply": "node.cli.apply",
        "try": "node.cli.apply",
        "stage": "node.cli.release.staged",
        "check": "node.cli.check",
        "status": "node.cli.status",
        "logs": "node.cli.history",
        "report": "node.cli.history",
        "why": "node.cli.history",
        "history": "node.cli.history",
        "disable": "node.cli.hold",
        "enable": "node.cli.hold",
        "rollback": "node.cli.hold",
        "cancel": "node.cli.apply",
        "instance-data": "node.cli.data",
        "lookup": "node.cli.lookup",
        "enc": "node.cli.data",
        "call": "fleet.cli.agent",
    },
    "Releases": {
        "release": "node.cli.release",
        "preview": "node.cli.preview.preview_command",
        "sealed": "fleet.cli.sealed",
    },
    "Fleet": {
        "nodes": "fleet.cli.nodes",
        "capture": "fleet.cli.capture",
        "trigger": "fleet.cli.trigger",
        "runonce": "fleet.cli.trigger",
        "assign": "fleet.cli.requests",
        "lease": "fleet.cli.lease",
        "kicks": "rollout.cli.kicks",
    },
    "Inventory": {
        "query": "fleet.cli.inventory",
        "inventory": "fleet.cli.inventory",
    },
    "Rollouts": {"rollout": "rollout.cli.rollout"},
    "Set-up": {
        "agent": "fleet.cli.agent",
        "bus": "fleet.cli.bus",
        "completion": "node.cli.node_setup",
        "init": "node.cli.node_setup",
        "join": "fleet.cli.joining",
        "keys": "fleet.cli.keys",
        "policy": "fleet.cli.joining",
        "units": "node.cli.node_setup",
        "hooks": "web.cli.hooks",
        "notify": "web.cli.notify",
        "web": "web.cli.web",
    },
}
ALIASES = {"hold": "disable"}
RENAMED = {"plan": "rollout plan", "last-run": "history -n 1"}
EVERYDAY = (
    *("check", "apply", "status", "report", "rollback"),
    *("nodes", "trigger", "disable", "preview", "rollout"),
)
# Keys of localpuppet.yaml that `fleet_settings` checks with each command.
PEER_KEYS = frozenset(
    ("identity", "trusted", "policy", "inventory", "exports", "capture", "socket", "kick")
)


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        click.echo(f"localpuppet, version {__version__}")
        ctx.exit()


@click.group(
    cls=CommandGroup,
    sections=SECTIONS,
    aliases=ALIASES,
    renamed=RENAMED,
    everyday=EVERYDAY,
    context_settings={"max_content_width": 100},
)
@option(
    "--root DIR",
    "Directory with input.yaml, modules/ and localpuppet.yaml.  "
    "[default: $LOCALPUPPET_ROOT or /etc/puppet]",
)
@option(
    "--color",
    "Colour the output; 'auto': on a terminal, unless NO_COLOR is set.",
    type=COLORS,
    default="auto",
    show_default=True,
)
@flag("--json as_json", "Print JSON.")
@flag(
    "-V --version",
    "Show the version and exit.",
    is_eager=True,
    expose_value=False,
    callback=_show_version,
)
@click.pass_context
def cli(ctx: click.Context, root: str | None, color: str, as_json: bool) -> None:
    """Run OpenVox or Puppet without a server.

    A node applies the release of Puppet code that its input.yaml names, and records the result of
    each run. Over a bus, nodes can trigger and query each other, and a rollout runs many nodes in
    order. 'localpuppet COMMAND --help' describes a command. Options of localpuppet work before and
    after a command.

    Examples:
      localpuppet check                      validate the input and its release
      localpuppet apply --noop               show what would change
      localpuppet apply                      run Puppet, and record the result
      localpuppet status --wait              wait for the run, exit by its result
      localpuppet disable -m 'db migration' --for 2h
    """
    from localpuppet.node.app import NodeApp, NodePorts

    ports = NodePorts(
        sections=_sections,
        neighbours=_neighbours,
        additions=_additions,
        failed_in=_failed_in,
    )
    ctx.obj = NodeApp(root, observe=render.progress, ports=ports)
    ctx.meta[JSON] = as_json
    render.COLOR.set(color)
    ctx.color = render.use_color(color, sys.stdout)


def _sections(keys: Collection[str]) -> "Sequence[SectionReader]":
    readers: list[SectionReader] = []
    if not PEER_KEYS.isdisjoint(keys):
        from localpuppet.fleet.fleet_settings import peer_settings

        readers.append(peer_settings)
    if "web" in keys:
        from localpuppet.web.web_settings import web_settings

        readers.append(web_settings)
    if "notify" in keys:
        from localpuppet.web.notify.routing import notify_settings

        readers.append(notify_settings)
    if "hooks" in keys:
        from localpuppet.web.hooks.hook_settings import hook_settings

        readers.append(hook_settings)
    return readers


def _neighbours(node: "NodeApp") -> "Neighbours":
    from localpuppet.fleet.neighbours import FleetNeighbours

    return FleetNeighbours(node)


def _additions(node: "NodeApp") -> "CommandAdditions":
    from localpuppet.fleet.cli.additions import FleetAdditions

    return FleetAdditions(node)


def _failed_in(node: "NodeApp", rollout: str) -> "Collection[NodeName]":
    from localpuppet.rollout.app import RolloutApp

    return RolloutApp(node).failed_in(RolloutId.parse(rollout))[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _prepare_output()
    try:
        code = _call(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Exception as error:  # the last resort of the program, so that no traceback is shown
        if os.environ.get("LOCALPUPPET_TRACEBACK"):
            raise
        return report_unexpected(error)
    if argv is None:
        gc.freeze()  # the kernel frees a process faster than its last collection
    return code


def _call(argv: Sequence[str] | None) -> int:
    out = sys.stdout
    try:
        result = cli.main(
            args=None if argv is None else list(argv),
            prog_name="localpuppet",
            standalone_mode=False,
        )
    except (click.Abort, KeyboardInterrupt):
        render.fail("stopped")
        return 130
    except click.ClickException as error:
        return _report_usage(error)
    except LocalpuppetError as error:
        render.fail(str(error))
        return error.exit_code
    except SystemExit:
        if sys.stdout is out:
            raise
        raise BrokenPipeError from None  # click wrapped the stream, and would exit 1
    return result if isinstance(result, int) else 0


def _prepare_output() -> None:
    """Make both streams take any text, and let none of it be a command for a CI runner."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # Of an ASCII stream, click would take the buffer.
            if codecs.lookup(stream.encoding).name == "ascii":
                stream.reconfigure(encoding="utf-8")
            stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, render.CommandFreeStream(stream))


def _report_usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        if error.ctx is not None and not render.on_terminal(sys.stdout):  # a pager, or a script
            click.echo(error.ctx.get_usage(), err=True)
        return 2
    message = _lower(error.format_message()).removeprefix("got ")
    if isinstance(error, click.MissingParameter):
        message = " ".join(message.split())  # click puts each choice on a line
        message = message.replace(". Choose from:", ", one of")
        if isinstance(error.param, click.Option) and error.param.help:
            message = f"{message.rstrip('.')}: {error.param.help}"
    elif isinstance(error, click.BadParameter) and error.param is not None:
        message = _about_value(error.param, error.message)
    if isinstance(error, click.NoSuchOption):
        hint = _right_option(error, error.ctx.command if error.ctx else cli)
        message = f"unknown option {error.option_name!r}{hint and ': '}{hint}"
    if isinstance(error, click.UsageError) and ": run 'localpuppet " not in message:
        verb = error.ctx.command_path if error.ctx else "localpuppet"
        if error.ctx and re.match("unexpected extra|missing argument", message):
            usage = " ".join([verb, *error.ctx.command.collect_usage_pieces(error.ctx)])
            message = f"{message.rstrip('.')}: the command is '{usage}'"
            if advice := other_words("words").get(f"{error.ctx.info_name}:ARGUMENT"):
                message = f"{message}, or run 'localpuppet {advice}'"
        message = f"{message.rstrip('.')} (see '{verb} --help')"
    render.fail(message)
    return error.exit_code


def _about_value(param: click.Parameter, text: str) -> str:
    """Return click's sentence on a wrong value in the form of the other messages."""
    place = max(param.opts, key=len)
    if isinstance(param, click.Argument):
        place = param.human_readable_name.strip("[]")
    text = re.sub("is not a valid integer( range)?", "is not a whole number", text)
    text = re.sub(r"is not in the range x>=(\d+)", r"is less than \1", text)
    text = re.sub(r"is not in the range (\d+)<=x<=(\d+)", r"is not from \1 to \2", text)
    return f"{place}: {_lower(text)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _right_option(error: click.NoSuchOption, command: click.Command) -> str:
    """Return a sentence on what is right in place of an unknown option; empty if unknown."""
    name = error.option_name
    right, words = other_words("options").get(name), other_words("words")
    if any(right in param.opts for param in command.params):
        return f"did you mean {right!r}?"
    if right == "--node" and any(param.name == "nodes" for param in command.params):
        return "write the names of nodes without an option"
    if advice := words.get(f"{command.name}:{name}") or words.get(name):
        return f"run 'localpuppet {advice}'"
    return suggest(name, error.possibilities or [])


def report_unexpected(error: Exception) -> int:
    """Report an exception that no command handled: an error of the machine, or a bug."""
    if isinstance(error, BrokenPipeError):
        for stream in (sys.stdout, sys.stderr):  # the reader closed the pipe, as `head` does
            render.drop_stream(stream)
        return 141
    if isinstance(error, OSError):
        render.drop_stream(sys.stdout)
        place = f"{error.filename}: " if error.filename else ""
        hint = f" ({ROOT_HINT})" if isinstance(error, PermissionError) else ""
        render.fail(f"{place}{error.strerror or error}{hint}")
        return 1
    if shortage := thread_shortage(error):
        render.fail(str(shortage))
        return shortage.exit_code
    what = f"{type(error).__name__}: {error}{_place(error)}"
    render.fail(f"bug in localpuppet: {what} (LOCALPUPPET_TRACEBACK=1 shows more)")
    return 70


def _place(error: Exception) -> str:
    """Return the innermost place in localpuppet's code, `, at FILE:LINE`; empty if none."""
    import traceback

    top = Path(__file__).parents[1]
    ours = [
        f", at {Path(frame.filename).relative_to(top)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(top / "localpuppet")
    ]
    return ours[-1] if ours else ""
