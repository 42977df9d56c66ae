"""Builds what computes a node's document or catalog and applies nothing."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.share.files import shared_file
from localpuppet.node.settings.node import FILE
from localpuppet.node.wiring.node import NodeInputs, NodeWiring, program_environment
from localpuppet.node.wiring.releases import OWN_MODULES, ReleaseWiring

if TYPE_CHECKING:
    from localpuppet.node.enc.command import EncCommand
    from localpuppet.node.puppet.command import Compilation
    from localpuppet.node.releases.calling import PuppetCaller
    from localpuppet.node.releases.classifier import Classifier
    from localpuppet.node.releases.release import Release


def classifier(node: NodeWiring, inputs: NodeInputs | None = None) -> "Classifier":
    """Return the classifier, which computes node documents without a run.

    Args:
        node: The parts of the node.
        inputs: The inputs that this process reads elsewhere, too; `None` if it does not.

    Raises:
        InvalidInputError: The setting `enc` is not a command.
    """
    from localpuppet.node.releases.classifier import Classifier

    return Classifier(
        inputs=(inputs or NodeInputs(node)).reader,
        documents=node.documents,
        resolve=ReleaseWiring(node).resolve,
        enc_command=enc_command(node),
        certname=partial(_certname, node),
        processes=lambda: node.processes,
    )


def _certname(node: NodeWiring) -> str:
    from localpuppet.node.wiring.state import require_puppet

    return require_puppet(node).settings["certname"]


def puppet_caller(node: NodeWiring, inputs: NodeInputs) -> "PuppetCaller":
    """Return what calls Puppet for lookups and facts, and applies nothing.

    Args:
        node: The parts of the node.
        inputs: Has the instance data, whose service is asked once for all calls.
    """
    from localpuppet.node.releases.calling import PuppetCaller
    from localpuppet.node.wiring.state import puppet_environment, require_puppet

    return PuppetCaller(
        state=node.settings.state,
        compilation=partial(compilation, node),
        instance_facts=lambda: inputs.instance.facts(),
        lookup_script=shared_file("lookup.rb"),
        installed=partial(require_puppet, node),
        env=partial(puppet_environment, node),
        processes=node.processes,
        timeout=node.settings.run_timeout,
    )


def compilation(
    node: NodeWiring, release: "Release", environment: str, environments: Path
) -> "Compilation":
    """Return the compilation of a release.

    Args:
        node: The parts of the node.
        release: The release.
        environment: The name of the environment.
        environments: The directory of environments.
    """
    from localpuppet.node.puppet.command import Compilation

    settings = node.settings
    return Compilation(
        own_directories=settings.puppet_directories,
        certname=node.neighbours.certname,
        enc_script=settings.enc_script,
        environments=environments,
        environment=environment,
        environment_code=release.environment_code,
        # localpuppet's modules come last: a site's module of the same name hides them.
        modulepath=(*release.whole_modulepath, OWN_MODULES),
        hiera_config=release.hiera_config,
        site_manifest=release.site_manifest or settings.site_manifest,
        immutable=release.is_immutable,
    )


def enc_command(node: NodeWiring) -> "EncCommand | None":
    """Return the site's ENC command, if it has one.

    Raises:
        InvalidInputError: The setting `enc` is not a command.
    """
    settings = node.settings
    if settings.enc is None:
        return None
    from localpuppet.node.enc.command import EncCommand

    return EncCommand.parse(
        settings.enc,
        timeout=settings.enc_timeout,
        env=program_environment(),
        where=f"{settings.root / FILE}: enc",
        note=node.observe("").note,
    )
