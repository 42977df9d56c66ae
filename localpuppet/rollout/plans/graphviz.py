"""Runs the program `dot` of Graphviz, which places boxes and edges.

Its input has sizes and numbers only (`diagram.dot_sizes`), so no name from the bus reaches it.
Time, memory and output are limited.
"""

import os
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.base.machine.isolation import Bounds, run
from localpuppet.rollout.plans.diagram import Diagram, dot_sizes
from localpuppet.rollout.plans.svg import write_svg

BOUNDS = Bounds(seconds=5, output=2 * 1024 * 1024, errors=4096, memory=256 * 1024 * 1024, file=0)


def draw_svg(
    diagram: Diagram, node_page: str = "", *, program: str = "dot", bounds: Bounds = BOUNDS
) -> str:
    """Return a diagram as SVG.

    Args:
        diagram: The diagram.
        node_page: As in `svg.write_svg`.
        program: Graphviz's program.
        bounds: The limits of the program.

    Raises:
        UnavailableError: Graphviz is not installed, fails, or exceeds a limit.
    """
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    text = dot_sizes(diagram).encode("ascii")
    try:
        done = run([program, "-Tjson0"], env=env, cwd=Path("/"), bounds=bounds, stdin=text)
    except OSError as error:
        raise UnavailableError(
            f"cannot start '{program}': {error.strerror}",
            where="Graphviz",
            hint="install it: 'apt install graphviz'; DOT text needs no program",
        ) from error
    if done.code or done.flooded or not done.in_time:
        problem = last_words(done.err, most=200) or f"'{program}' ended with {done.code}"
        if not done.in_time:
            problem = f"'{program}' did not end within {bounds.seconds:g} s"
        raise UnavailableError(problem, where="Graphviz", hint="select fewer nodes, or use '--dot'")
    return write_svg(diagram, loads(done.out), node_page)
