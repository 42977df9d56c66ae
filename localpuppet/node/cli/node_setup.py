"""`localpuppet init`, `completion` and `units`: what a node, the shell and systemd begin with."""

import json
import re
import sys
from pathlib import Path

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import add_durably
from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import Command, command, flag, option
from localpuppet.node.settings import FILE


class RunCommand(Command):
    """A command that takes a RUN; `-1` is the run before the newest and not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; words like `-1` are moved behind `--`."""
        runs = [word for word in args if re.fullmatch(r"-[1-9][0-9]*", word)]
        if runs and "--" not in args:
            args = [*(word for word in args if word not in runs), "--", *runs]
        return super().parse_args(ctx, args)


def complete_run(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of runs that begin or end with `incomplete`."""
    try:
        ids = _node(ctx).records.ids()
    except LocalpuppetError:
        return []  # a shell's completion has nowhere to say what is wrong
    ends = [run.rpartition("-")[2] for run in ids] if incomplete else []
    return [name for name in (*ids, *ends) if name.startswith(incomplete)]


def complete_release(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the releases on this node, and those in its packages, that begin with `incomplete`."""
    try:
        modules = _node(ctx).settings.modules
    except LocalpuppetError:
        return []
    directories = [*modules.glob("*/trunk"), *modules.glob("*/tags/*")]
    known = sorted(path.relative_to(modules).as_posix() for path in directories if path.is_dir())
    return [name for name in known if name.startswith(incomplete)]


def complete_tag(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the tags that were applied on this node and begin with `incomplete`, newest first."""
    try:
        ledger = _node(ctx).ledger
        apps = [app for source in ledger.sources() for app in reversed(ledger.order(source))]
    except LocalpuppetError:
        return []
    tags = dict.fromkeys(app.partition("/tags/")[2] for app in apps)
    return [tag for tag in tags if tag.startswith(incomplete)]


def _node(ctx: click.Context) -> NodeApp:
    return NodeApp(ctx.find_root().params.get("root"))


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    SHELL is bash, zsh or fish.

    Examples:
      localpuppet completion bash > /etc/bash_completion.d/localpuppet
      localpuppet completion zsh  > "${fpath[1]}/_localpuppet"
      localpuppet completion fish > ~/.config/fish/completions/localpuppet.fish
    """
    from click.shell_completion import get_completion_class

    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.UsageError(f"no completion for {shell}")
    complete = shell_class(ctx.find_root().command, {}, "localpuppet", "_LOCALPUPPET_COMPLETE")
    render.emit(complete.source())


HOW = "https://HOST/PATH, ssh://HOST/PATH, USER@HOST:PATH, or a directory of this machine"


@command("init")
@option("--source URL", "Repository of the Puppet code: a URL, or a directory of this machine.")
@option("--release TAG", "The release of this node, a tag of the repository.")
@option("--role ROLE", "The role of this node, a parameter of its input.")
@click.pass_obj
def init_command(node: NodeApp, source: str | None, release: str | None, role: str | None) -> None:
    """Write the first settings, input and policy of this node.

    On a terminal, the command asks for what the options leave out. It writes localpuppet.yaml,
    input.yaml and policies/puppet.policy, which allows no requests. It replaces no file. The name
    of the source is the last part of URL.

    Examples:
      localpuppet init
      localpuppet init --source https://git.example.com/control.git
      localpuppet init --source /srv/git/control --release r1
    """
    from localpuppet.node.releases.git.git_names import GitUrl

    if not render.on_terminal(sys.stdin) and not (source and release):
        raise click.UsageError("without a terminal, pass --source and --release")
    source = source or click.prompt("Repository of the Puppet code (URL or directory)", err=True)
    release = release or click.prompt("Release of this node (a tag)", default="r1", err=True)
    is_local = Path(source := source.removeprefix("file://")).is_dir()
    url = Path(source).resolve().as_uri() if is_local else source
    if not is_local and ":" not in source:
        raise InvalidInputError("is neither a directory nor a URL", where="--source", hint=HOW)
    GitUrl.parse(url, where="--source", allow_file=is_local)
    name = re.split("[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    app = ReleasePath.parse(f"{name}/tags/{release}", where="--release")
    settings = f"sources:\n  {name}: {{git: {json.dumps(url)}}}\n"
    settings += "allow_file_urls: true\n" if is_local else ""
    document = f"app: {app}\n"
    document += f"parameters: {{role: {json.dumps(role)}}}\n" if role else ""
    root = node.settings.root
    files = {
        FILE: settings,
        "input.yaml": document,
        "policies/puppet.policy": "policy default deny\n",
    }
    for file, text in files.items():
        path = root / file
        path.parent.mkdir(mode=0o755, exist_ok=True)
        is_new = add_durably(path, text.encode(), mode=0o644)
        render.emit(f"{path}: {'written' if is_new else 'kept, as it exists'}")
    render.emit("next: 'localpuppet stage', then 'localpuppet apply --noop'")


TIMER = ("localpuppet.service", "localpuppet.timer")
AGENT = ("localpuppet-agent.service",)
SPLIT = (
    "localpuppet-agent-run.socket",
    "localpuppet-agent-run.service",
    "localpuppet-agent-net.service",
)
WEB = ("localpuppet-web.service", "localpuppet-puppetdb.service")
NAMES = (*TIMER, *AGENT, *SPLIT, *WEB)


@command("units")
@click.argument("name", required=False, type=click.Choice(NAMES), metavar="[NAME]")
@flag("--json as_json", "Print JSON.")
def units_command(name: str | None, as_json: bool) -> None:
    """Print the systemd units of localpuppet.

    Without NAME, the command prints all units. Write those of one form to /etc/systemd/system, then
    run 'systemctl daemon-reload' and 'systemctl enable --now NAME'.

    A node has the units of one of these forms:
      localpuppet.service              a run every half hour, without agent
      localpuppet.timer
      localpuppet-agent.service        the agent in one process
      localpuppet-agent-run.socket     the agent in two processes; the one
      localpuppet-agent-run.service      on the network has no privileges
      localpuppet-agent-net.service
    A machine that serves the dashboard, or PuppetDB's API, also has:
      localpuppet-web.service          the dashboard, over TLS
      localpuppet-puppetdb.service     PuppetDB's API, on loopback

    Examples:
      cd /etc/systemd/system
      localpuppet units localpuppet-agent.service > localpuppet-agent.service
      localpuppet units --json | jq -r '.units | keys[]'
    """
    try:
        texts = {
            unit: shared_file(f"units/{unit}").read_text("utf-8")
            for unit in NAMES
            if name in (None, unit)
        }
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error}", where="units") from error
    if as_json:
        render.emit_json({"schema": 1, "units": texts})
        return
    for unit, text in texts.items():
        if name is None:
            render.emit(f"# {unit}")
        render.emit(text)
