"""Print a plan as text: in the form of `mco choria plan`, or for a terminal."""

import json
from collections.abc import Iterator, Sequence

import click

from localpuppet.node.cli import render
from localpuppet.rollout.plan import Plan, Run
from localpuppet.rollout.site import SiteComponent

MOST_COMPONENTS = 20  # of a run, at a terminal
MOST_NAMES = 4
_RULE = "-" * 38


def as_choria(plan: Plan) -> str:
    """Return a plan as choria's orchestrator printed it, byte for byte, with two differences.

    - The counts are those of the selection.
    - A node that runs more than once has "(run 1 of 2)" after its name; choria rejected such plans.
    """
    lines = [f"Puppet Site Plan for the {_bold(plan.environment)} Environment", ""]
    if not plan.applications:
        return "\n".join([*lines, "No site applications were found in the Puppet environment", ""])
    applications, nodes = _bold(str(len(plan.applications))), _bold(str(len(plan.nodes)))
    lines += [f"{applications} applications on {nodes} managed nodes:", ""]
    lines += [f"\t{name}" for name in plan.applications]
    lines += ["", "Node groups and run order:"]
    dashes, rule = click.style("   ---", fg="green"), click.style(_RULE, fg="green")
    for number, group in enumerate(plan.groups, 1):
        lines += [f"   {dashes} {_bold(f'Group {number}')} {rule}", ""]
        for run in group:
            lines.append(f"\t{_bold(run.node)}{_which(run)}")
            lines += [
                f"\t\t{application} -> {', '.join(names)}"
                for application, names in run.by_application().items()
            ]
            lines.append("")
    return "\n".join([*lines, ""])


def as_json(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan's JSON document, one for each run, to save memory."""
    yield json.dumps(plan.summary())[:-1] + ', "groups": ['
    for number, group in enumerate(plan.groups, 1):
        yield f'{{"group": {number}, "runs": ['
        for place, run in enumerate(group, 1):
            yield json.dumps(run.to_dict()) + ("," if place < len(group) else "")
        yield "]}," if number < len(plan.groups) else "]}"
    yield "]}"


def for_people(plan: Plan) -> str:
    """Return a plan for a terminal: each run's components, their needs, and the longest chain."""
    if not plan.applications:
        return f"{_bold(plan.environment)} has no applications: nothing would run"
    head = (
        f"{_bold(plan.environment)}: {render.counted(len(plan.applications), 'application')} on "
        f"{render.counted(len(plan.nodes), 'node')}, {render.counted(len(plan.runs), 'run')} in "
        f"{render.counted(len(plan.groups), 'group')}"
    )
    lines = [render.hanging("", head)]
    chain = {(link.group, link.node) for link in plan.chain} if len(plan.groups) > 1 else set()
    for number, group in enumerate(plan.groups, 1):
        lines += ["", _bold(f"Group {number}")]
        for run in group:
            mark = click.style("*", fg="cyan", bold=True) if (number, run.node) in chain else " "
            which = click.style(_which(run), fg="yellow") if run.total > 1 else ""
            lines += [f"{mark} {_bold(run.node)}{which}", *_components(run)]
    lines += _notes(plan)
    return "\n".join(lines)


def repeated(plan: Plan) -> str:
    """Return a sentence on the nodes that run more than once; empty if there are none."""
    nodes = list(plan.repeated())
    if not nodes:
        return ""
    return (
        f"{_names(nodes)} {'runs' if len(nodes) == 1 else 'run'} more than once: each needs what "
        "another one of these produces, so node by node the order would be a cycle"
    )


def _components(run: Run) -> list[str]:
    lines = [_component(component) for component in run.components[:MOST_COMPONENTS]]
    left = len(run.components) - len(lines)
    if left > 0:
        lines.append(f"    and {render.counted(left, 'component')} more (see --json)")
    return lines


def _component(component: SiteComponent) -> str:
    words = [f"{component.application} {component.name}"]
    if component.consumes:
        words.append(f"needs {_names(component.consumes)}")
    if component.produces:
        words.append(f"gives {_names(component.produces)}")
    if component.checks:
        words.append(render.counted(len(component.checks), "check"))
    return render.hanging("    ", ", ".join(words))


def _notes(plan: Plan) -> list[str]:
    lines = []
    if len(plan.groups) > 1:
        steps = [
            f"{link.node} ({link.capability})" if link.capability else str(link.node)
            for link in plan.chain
        ]
        lines += ["* the longest chain:", render.hanging("    ", " > ".join(_shortened(steps)))]
    if sentence := repeated(plan):
        lines.append(render.hanging("", sentence))
    if plan.external_capabilities:
        names = _names(plan.external_capabilities)
        text = f"taken for granted, from nodes that are not selected: {names}"
        lines.append(render.hanging("", text))
    return ["", *lines] if lines else []


def _shortened(steps: list[str]) -> list[str]:
    left = len(steps) - 3 * MOST_NAMES
    half = 3 * MOST_NAMES // 2
    return steps if left <= 1 else [*steps[:half], f"… {left} more …", *steps[-half:]]


def _names(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"and {left} more"] if left > 0 else [])])


def _which(run: Run) -> str:
    return f" (run {run.number} of {run.total})" if run.total > 1 else ""


def _bold(text: str) -> str:
    return click.style(text, bold=True)
