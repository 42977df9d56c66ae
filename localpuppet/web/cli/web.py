"""`localpuppet web`: show the fleet in a browser."""

from pathlib import Path

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring

LISTEN = "127.0.0.1:8141"


@click.command(
    "web",
    short_help="Show the fleet in a browser.",
    epilog="""\b
Examples:
  localpuppet web                        prints a link, good once
  localpuppet web --open                 and opens it
  localpuppet web --listen 127.0.0.1:0   a port that is free
  localpuppet web --actions              nodes can be asked
  localpuppet web --listen 0.0.0.0:8443  over TLS, for web.people
  ssh -L 8141:127.0.0.1:8141 HOST        another machine's page

Exit codes: 0 ended by ^C; 2 it is refused, or something is not installed: the extra `web`.
""",
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default=LISTEN,
    show_default=True,
    help="An address and a port; off loopback over TLS, for the people in web.people.",
)
@click.option(
    "--actions",
    is_flag=True,
    help="Have nodes and rollouts do something from the page, in your name.",
)
@click.option(
    "--site",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The site whose plan is shown.  [default: the inventory]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.pass_obj
def web_command(
    node: NodeWiring, listen: str, actions: bool, site: Path | None, opens: bool
) -> None:
    """Show the fleet in a browser, live, until ^C: nodes, runs, holds, facts, kicks.

    Without --actions the dashboard is read-only. With it, the dashboard sends requests to nodes in
    your name, and their policies decide. It keeps results of runs for 90 days. If the bus is
    unreachable, it shows when its data were last updated.

    On another address than loopback the dashboard is read-only, over TLS, for people in web.people
    with a certificate of identity.ca.
    """
    from localpuppet.fleet.agent.log import AgentLog
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.web.wiring.dashboard import opening, serve_page

    fleet, log = FleetWiring(node), AgentLog(node.clock, debug=False)
    with opening(node) as open_:

        def opened(address: str, link: str) -> None:
            if link:
                render.emit(f"dashboard at {address}; this link works once, for ten minutes:")
                render.emit(link)
            else:
                render.emit(f"dashboard at {address}, for certificates of the people in web.people")
            if opens and not open_(link or address):
                render.say("# found no browser: open the address by hand", err=True)

        run(serve_page(fleet, log, listen, opened, actions=actions, site=site))
