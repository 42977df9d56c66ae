"""`localpuppet check`: validate everything, run nothing."""

from functools import partial
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.wiring.settings import fleet_settings, peers
from localpuppet.node.cli import render
from localpuppet.node.puppet.installation import find_command
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.fleet.exports.recording import Collected
    from localpuppet.node.releases.release import Release


@click.command(
    "check",
    short_help="Validate the settings, an input and what it names; run nothing.",
    epilog="""\b
Examples:
  localpuppet check                  the root's input
  localpuppet check new-input.yaml   before it is put in place
  localpuppet check --parse          and hold it against its classes
""",
)
@click.argument("source", metavar="[INPUT|-|https://…|userdata:]", required=False)
@click.option("--parse", is_flag=True, help="Have Puppet parse the release's files now.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check_command(node: NodeWiring, source: str | None, parse: bool, as_json: bool) -> None:
    """Validate settings, INPUT, its release, layers and node document; run nothing.

    A release that is older than the one that was applied last is refused, as 'apply' does.

    The document must fit the classes and parameters that Puppet's parser found in a staged
    release, or finds in any release now (with --parse).

    What the release's code needs and this node lacks is a warning: modules that not every Puppet
    bundles, a bus for puppetdb_query.

    Where the newest run collected exported resources: what its collectors would take of whom now,
    by the policy as it is, of what this node holds; the bus is not asked.
    """
    from localpuppet.node.releases.interfaces import check_kept
    from localpuppet.node.wiring.releases import ReleaseWiring, elsewhere
    from localpuppet.node.wiring.run import RunWiring

    RunWiring(node).refuse_foreign()
    classified = (
        RunWiring(node)
        .classifier()
        .classify(str(node.settings.input) if source is None else source, None)
    )
    loaded, release, document = classified.loaded, classified.release, classified.document
    if node.ledger.rollback() is None:  # else whoever rolled back has decided
        app = loaded.input.app
        try:
            before = RunWiring(node).applied_elsewhere(app) if node.ledger.begins(app) else None
            node.ledger.check_forward(app, before=before)
        except LocalpuppetError as error:
            raise loaded.placed(error) from error
    releases = ReleaseWiring(node)
    warnings = [
        f"{name} is mutable: the same input may give another result later"
        for name in release.mutable
    ]
    puppet = find_command(node.settings.puppet, node.environment["PATH"])
    if puppet is None:
        warnings.append(
            "Puppet was not found (see puppet.command): classes and parameters were not checked"
        )
    elif parse:
        left_out = releases.reader().check_now(release, document, where=loaded.name)
        warnings += [left_out] if left_out else []
    else:
        try:
            check_kept(releases.interfaces, partial(elsewhere, node), document, release, ())
        except LocalpuppetError as error:
            raise error.at(loaded.name) from error
    warnings += [
        *_needs(node, release, parse=parse and puppet is not None),
        *_claims(node),
        *_collects(node),
        *_reacts(node),
    ]
    asked = _asked(node)
    rollback = node.rollback() if source is None else None
    if rollback is not None:
        warnings.append(f"{rollback}; 'localpuppet rollback --end' follows the input")
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "input": loaded.name,
                "input_sha256": loaded.sha256,
                "app": release.app,
                "modulepath": [str(name) for name in [*release.names, *release.base]],
                "layers": list(loaded.input.layers),
                "node_document": document.to_dict(),
                "warnings": warnings,
                "collectors": [one.to_dict() for one in asked],
                "rollback": rollback.to_public() if rollback else None,
            }
        )
        return
    render.emit(
        render.pairs(
            [
                ("Input", f"{loaded.name} (sha256 {loaded.sha256[:16]}…)"),
                ("Release", release.app),
                ("Modulepath", ", ".join(map(str, [*release.names, *release.base]))),
                ("Layers", ", ".join(map(render.user_text, loaded.input.layers))),
                ("Environment", document.environment),
                ("Classes", ", ".join(document.classes) or "none"),
                ("Parameters", ", ".join(document.parameters)),
            ]
        )
    )
    if asked:
        from localpuppet.fleet.cli.record.collected import would_take

        render.emit(would_take(asked))
    for warning in warnings:
        render.Silent().note(f"warning: {warning}")
    render.emit(click.style("valid", fg="green"))


def _needs(node: NodeWiring, release: "Release", *, parse: bool) -> list[str]:
    """Return what the release's code needs and this node does not have, where that is known.

    Raises:
        LocalpuppetError: Puppet's parser was to say that, and does not work.
    """
    from localpuppet.node.releases.interfaces import modules_in
    from localpuppet.node.wiring.releases import ReleaseWiring

    releases = ReleaseWiring(node)
    interface = releases.interfaces.kept(release)
    if interface is None and parse:
        interface = releases.reader().interface_of(release)
    if interface is None:
        return []
    bus = fleet_settings(node).bus.named
    return interface.unmet(bus=bus, modules=modules_in(release.base))


def _claims(node: NodeWiring) -> list[str]:
    """Return what is to be said of the policy of claims, which is read here, too.

    Raises:
        InvalidInputError: It is refused.
    """
    from localpuppet.fleet.inventory.admission import read_claims

    policy = peers(node).inventory.policy
    if read_claims(policy) is None and fleet_settings(node).bus.engine != "sqlite":
        return [f"there is no {policy}: each node may claim any role and address"]
    return []


def _asked(node: NodeWiring) -> "list[Collected]":
    """Return what collectors would get now; nothing where nothing is collected.

    Raises:
        LocalpuppetError: The record, or what is held of other nodes, cannot be read.
    """
    from localpuppet.fleet.wiring.exports import ExportsWiring
    from localpuppet.fleet.wiring.fleet import FleetWiring

    if not fleet_settings(node).bus.named:
        return []
    return ExportsWiring(node).would_take(FleetWiring(node).name)


def _collects(node: NodeWiring) -> list[str]:
    """Return what is to be said of the policy of collectors, which is read here, too.

    Raises:
        InvalidInputError: It is refused.
    """
    from localpuppet.fleet.exports.collecting import read_collect_policy

    policy = read_collect_policy(peers(node).collect_policy)
    return [f"{peers(node).collect_policy}: {warning}" for warning in policy.warnings()]


def _reacts(node: NodeWiring) -> list[str]:
    """Return what is to be said of the policy where no change of another node makes this one run.

    Raises:
        InvalidInputError: It is refused.
    """
    from localpuppet.fleet.trust.policy_file import read_policy

    path = peers(node).policy
    policy = read_policy(path) if fleet_settings(node).agent.react else None
    if policy is None or policy.may_allow("react"):
        return []
    return [
        f"{path}: no line allows react, so that this node follows no change of others: write one, "
        "or 'agent: {react: false}' in localpuppet.yaml"
    ]
