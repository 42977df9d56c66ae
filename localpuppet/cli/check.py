"""`localpuppet check`: validate everything, run nothing."""

import click

from localpuppet.cli import render
from localpuppet.cli.wiring import Parts


@click.command("check")
@click.argument("source", metavar="[INPUT|-|https://…]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check_command(parts: Parts, source: str | None, as_json: bool) -> None:
    """Validate settings, INPUT, its release, layers and node document; run nothing.

    Where Puppet is installed its parser reads the release, and the document must fit the classes
    and parameters that it found.
    """
    from localpuppet.cli.classify import classify
    from localpuppet.cli.fitting import check_now

    read, release, document = classify(parts, source or str(parts.settings.input), None)
    warnings = [
        f"{name} is mutable: the same input may give another result later"
        for name in release.mutable
    ]
    left_out = check_now(parts, read.name, release, document)
    if left_out:
        warnings.append(left_out)
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "input": read.name,
                "input_sha256": read.sha256,
                "app": release.app,
                "modulepath": [str(directory) for directory in release.modulepath],
                "layers": list(read.input.layers),
                "node_document": document.to_dict(),
                "warnings": warnings,
            }
        )
        return
    render.emit(
        render.pairs(
            [
                ("Input", f"{read.name} (sha256 {read.sha256[:16]}…)"),
                ("Release", release.app),
                ("Modulepath", ", ".join(str(directory) for directory in release.modulepath)),
                ("Layers", ", ".join(map(render.user_text, read.input.layers))),
                ("Environment", document.environment),
                ("Classes", ", ".join(document.classes) or "none"),
                ("Parameters", ", ".join(document.parameters)),
            ]
        )
    )
    for warning in warnings:
        render.Silent().note(f"warning: {warning}")
    render.emit(click.style("valid", fg="green"))
