"""Formats resources of a run for `report`, of this node and others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.node.cli import render
from localpuppet.node.puppet.command import in_release, with_places_in_release
from localpuppet.node.puppet.resources import ReportedResource, ResourceResult

SECTIONS = (
    (ResourceResult.FAILED, "Failed", "red"),
    (ResourceResult.CHANGED, "Changed", "green"),
    (ResourceResult.WOULD_CHANGE, "Would change", "yellow"),
    (ResourceResult.SKIPPED, "Skipped", "cyan"),
)


def sections(
    resources: Sequence[ReportedResource],
    limit: int,
    shorten: Callable[[str], str] = lambda path: path,
    *,
    margin: int = 0,
) -> Iterator[str]:
    """Yield a paragraph with its heading for each result of resources.

    Args:
        resources: The resources.
        limit: Maximum number of resources of a kind.
        shorten: Makes a path shorter.
        margin: Blanks that the caller puts before each line.
    """
    for result, word, color in SECTIONS:
        selected = [resource for resource in resources if resource.result is result]
        if selected:
            heading = f"{click.style(word, fg=color, bold=True)} {len(selected)}"
            yield f"{heading}\n{_section(selected, limit, shorten, margin)}"


def _section(
    resources: Sequence[ReportedResource], limit: int, shorten: Callable[[str], str], margin: int
) -> str:
    lines = []
    for resource in resources[:limit]:
        lines.append(title(resource, margin=margin))
        if resource.file:
            line = f":{resource.line}" if resource.line else ""
            place = one_line(f"{shorten(in_release(resource.file))}{line}")
            lines.append("    " + click.style(place, dim=True))
        for event in resource.events:
            when = f"{parse_time(event.time):%H:%M:%S}" if event.time else ""
            name = f"{event.property}: " if event.property else ""
            first, *rest = render.user_text(
                f"{name}{with_places_in_release(event.message)}"
            ).splitlines() or [""]
            lines.append(render.hanging(f"    {click.style(when, dim=True)} ", first, margin))
            lines += [f"      {line}" for line in rest]
    if len(resources) > limit:
        lines.append(f"  and {len(resources) - limit} more; --limit or --json shows them")
    return "\n".join(lines)


def title(resource: ReportedResource, *, margin: int = 0) -> str:
    """Return a resource's reference, with its duration at the end of the line."""
    name = f"  {one_line(resource.resource)}"
    seconds = resource.seconds
    if seconds is None:
        return name
    took = f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"
    room = (render.columns() or 80) - margin - len(took) - 2
    if len(name) > room:
        name = f"{name[: room - 1]}…"
    return f"{name.ljust(room)}  {click.style(took, dim=True)}"


def shortener(*directories: Path) -> Callable[[str], str]:
    """Return a function that removes these directories from the start of a path."""

    def shorten(path: str) -> str:
        for directory in directories:
            if path.startswith(f"{directory}/"):
                return path.removeprefix(f"{directory}/")
        return path

    return shorten
