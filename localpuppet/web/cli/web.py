"""`localpuppet web`: show the fleet in a browser, and serve PuppetDB's query API."""

from typing import Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, path_type

LISTEN = "127.0.0.1:8141"
PUPPETDB = "127.0.0.1:8080"
HOOKS = "127.0.0.1:8142"


@command("web", exits={0: "ended by ^C", 1: "", 69: ""})
@option(
    "--listen ADDRESS:PORT",
    "Listen here; on other than loopback addresses over TLS, for the people in web.people.",
    default=LISTEN,
    show_default=True,
)
@flag("--actions", "Allow the dashboard to send requests and rollout commands in your name.")
@option("--site FILE", "Show the plan of this site.  [default: the inventory]", type=path_type())
@option(
    "--puppetdb [ADDRESS:PORT]",
    "Also serve PuppetDB's query API, by default at 127.0.0.1:8080.",
    is_flag=False,
    flag_value=PUPPETDB,
)
@flag("--notify", "Tell the channels of 'notify:' what goes wrong in the fleet.")
@option(
    "--hooks [ADDRESS:PORT]",
    "Take deliveries of git hosts for 'hooks:', by default at 127.0.0.1:8142.",
    is_flag=False,
    flag_value=HOOKS,
)
@flag("--no-dashboard", "Serve no dashboard: only --puppetdb, --notify and --hooks.")
@flag("--open opens", "Open the dashboard in a browser.")
@click.pass_obj
def web_command(
    node: NodeApp,
    /,
    opens: bool,
    no_dashboard: bool,
    listen: str,
    **options: Any,  # noqa: ANN401 - the others of `WebOptions`
) -> None:
    """Serve the dashboard of the fleet.

    The dashboard shows nodes, runs, holds, facts, kicks and rollouts, live, until ^C. It keeps the
    results of runs for 90 days. If the bus is unreachable, it shows when its data was last updated.

    Without --actions, the dashboard is read-only. With it, the dashboard sends requests in your
    name, and the policies of the nodes decide. On an address other than loopback, it uses TLS and
    is read-only; people in web.people need a certificate of identity.ca.

    With --puppetdb, clients of PuppetDB such as Puppetboard read the fleet; they cannot change it.
    On loopback, they need to be root, the user of this process, or one in web.puppetdb.users.
    Elsewhere they use TLS, with a certificate whose name is in web.puppetdb.names.

    With --notify, it tells the channels of 'notify:' what goes wrong, and when it is over.

    With --hooks, git hosts report pushes. New releases are then staged on nodes, or rolled out, as
    'hooks:' says, in your name. On other than loopback addresses it uses TLS.

    Examples:
      localpuppet web                        print a link, valid once
      localpuppet web --open                 and open it in a browser
      localpuppet web --listen 127.0.0.1:0   on a free port
      localpuppet web --actions              allow requests to nodes
      localpuppet web --listen 0.0.0.0:8443  over TLS, for the people in web.people
      localpuppet web --puppetdb             with PuppetDB's API at port 8080
      localpuppet web --puppetdb 0.0.0.0:8081 --no-dashboard
                                             only the API, over TLS
      localpuppet web --notify --no-dashboard
                                             only notifications
      localpuppet web --hooks --no-dashboard  only deliveries, behind a proxy
      ssh -L 8141:127.0.0.1:8141 HOST        forward the port of another machine
    """
    from localpuppet.fleet.agent.service_log import ServiceLog
    from localpuppet.fleet.app import FleetApp, run
    from localpuppet.web.app import WebAddresses, WebApp, WebOptions, opening

    serves = options["notify"] or options["puppetdb"] or options["hooks"]
    if no_dashboard and (not serves or opens or options["actions"]):
        raise InvalidInputError(
            "requires --puppetdb, --notify or --hooks, and no --open or --actions",
            where="--no-dashboard",
        )
    fleet, log = FleetApp(node), ServiceLog(node.clock, debug=False)
    with opening(node) as open_:

        def opened(addresses: WebAddresses) -> None:
            node.documents.remember()
            if addresses.link:
                render.emit(
                    f"dashboard at {addresses.dashboard}; this link works once, for ten minutes:"
                )
                render.emit(addresses.link)
            elif addresses.dashboard:
                render.emit(
                    f"dashboard at {addresses.dashboard}, for certificates of the people in"
                    " web.people"
                )
            if options["notify"]:
                render.emit("notifications are on: 'localpuppet notify test --list' shows channels")
            if addresses.hooks:
                render.emit(f"hooks at {addresses.hooks}: 'localpuppet hooks' lists them")
            if addresses.puppetdb:
                render.emit(f"PuppetDB API at {addresses.puppetdb}")
            if opens and not open_(addresses.link or addresses.dashboard):
                render.say("# found no browser: open the address by hand", err=True)

        served = WebOptions(listen=None if no_dashboard else listen, **options)
        run(WebApp(fleet, log).serve(served, opened))
