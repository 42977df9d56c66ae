"""`localpuppet check`: validate everything, run nothing."""

from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import BusyError, LocalpuppetError, PuppetMissingError, errors_at
from localpuppet.base.machine.anchors import anchor_problems
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag
from localpuppet.node.puppet.installation import find_command, json_problem

if TYPE_CHECKING:
    from localpuppet.node.releases.release import Release


@command("check", exits={1: "", 3: "", 69: ""})
@click.argument("source", metavar="[INPUT|-|https://…|userdata:]", required=False)
@flag("--parse", "Run Puppet's parser on the release now.")
@flag("--allow-older", "Accept a release that is older than the last one, as 'apply' does.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def check_command(
    node: NodeApp, source: str | None, parse: bool, allow_older: bool, as_json: bool
) -> None:
    """Validate settings, input and release; run nothing.

    INPUT is as for 'apply'. Like 'apply', check rejects a release that is older than the last
    applied one.

    The classes and parameters of the input must exist in the release. check compares them with the
    list that Puppet's parser made when the release was staged; --parse makes the list again. If
    the release's code needs a class, type, function or module that is missing, or a bus that
    localpuppet.yaml does not name, check warns.

    If the newest run collected exported resources, check shows which resources of which nodes the
    current policy accepts. It uses this node's copy of the inventory, not the bus.

    Examples:
      localpuppet check                  the root's input
      localpuppet check new-input.yaml   before you install it
      localpuppet check --parse          also if the release was not parsed
    """
    node.refuse_foreign_files()
    classified = node.classifier.classify(
        str(node.settings.input) if source is None else source, None
    )
    loaded, release, document = classified.loaded, classified.release, classified.document
    ledger = node.ledger
    if ledger.rollback() is None and not allow_older:  # else the rollback has decided
        app = loaded.input.app
        try:
            before = node.applied_elsewhere(app) if ledger.begins(app) else None
            ledger.check_forward(app, before=before)
        except LocalpuppetError as error:
            raise loaded.placed(error) from error
    warnings = [
        f"{name} is mutable: the same input may give another result later"
        for name in release.mutable
    ]
    puppet = find_command(node.settings.puppet.command, program_environment()["PATH"])
    if puppet is None:
        warnings.append(
            "no OpenVox or Puppet (see puppet.command): classes and parameters were not checked"
        )
    elif parse:
        left_out = node.reader.check_now(release, document, where=loaded.name)
        warnings += [left_out] if left_out else []
    else:
        with errors_at(loaded.name, LocalpuppetError):
            node.reader.check_kept(document, release, ())
    if node.settings.basemodulepath and not release.base:
        warnings.append(
            f"basemodulepath: {release.name} does not use it (remove the setting, or name"
            " $basemodulepath in the modulepath of the release's environment.conf)"
        )
    addition = node.additions.check()
    warnings += _authorities(node)
    warnings += _needs(node, release, parse=parse and puppet is not None)
    warnings += [*addition.warnings, *(_puppet_state(node) if puppet else [])]
    rollback = node.rollback_in_force() if source is None else None
    if rollback is not None:
        warnings.append(f"{rollback}; 'localpuppet rollback --end' follows the input")
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "input": loaded.name,
                "input_sha256": loaded.sha256,
                "release": release.name,
                "modulepath": [str(name) for name in [*release.names, *release.base]],
                "layers": list(loaded.input.layers),
                "node_document": document.to_dict(),
                "warnings": warnings,
                "rollback": rollback.to_public() if rollback else None,
                **addition.fields,
            }
        )
        return
    render.emit(
        render.pairs(
            [
                ("Input", f"{loaded.name} (sha256 {loaded.sha256[:16]}…)"),
                ("Release", release.name),
                ("Modulepath", ", ".join(map(str, [*release.names, *release.base]))),
                ("Layers", ", ".join(map(render.user_text, loaded.input.layers))),
                ("Environment", document.environment),
                ("Classes", ", ".join(document.classes) or "none"),
                ("Parameters", ", ".join(document.parameters)),
            ]
        )
    )
    for text in addition.paragraphs:
        render.emit(text)
    for warning in warnings:
        render.note(f"warning: {warning}")
    render.emit(click.style("valid", fg="green"))


def _authorities(node: NodeApp) -> list[str]:
    sources = node.settings.module_sources.items()
    files = {f"{kind}.ca": source.get("ca") for kind, source in sources}
    return anchor_problems({"https_ca": node.settings.https_ca, **files})


def _puppet_state(node: NodeApp) -> list[str]:
    """Return what of Puppet blocks runs or changes them: its run lock and its puppet.conf."""
    from localpuppet.node.puppet.launching import PuppetRunLock

    lines: list[str] = []
    try:
        installation = node.find_puppet(ask=True)
        if installation is not None:
            lines += installation.warnings(bus=node.neighbours.exchange_resources)
            problem = json_problem(installation, program_environment())
            lines += [problem] if problem else []
            PuppetRunLock(installation.run_lock, node.processes).refuse_held()
    except (BusyError, PuppetMissingError) as error:
        lines.append(str(error))
    return lines


def _needs(node: NodeApp, release: "Release", *, parse: bool) -> list[str]:
    """Return the known requirements of the release's code that this node lacks."""
    from localpuppet.node.runs.interface_reader import modules_in

    interface = node.reader.kept(release)
    if interface is None and parse:
        interface = node.reader.interface_of(release)
    if interface is None:
        return []
    return interface.unmet(
        bus=node.neighbours.exchange_resources,
        locked={start.rpartition("/")[2] for start in release.trees},
        modules=modules_in(release.base),
    )
