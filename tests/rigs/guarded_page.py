"""docs/guarded.md, as `scripts/guarded` writes it: what a guarded line drops of each core type."""

import json
import sys
from pathlib import Path
from typing import Any

from localpuppet.fleet.exports.guarding import GUARDED, is_guarded
from localpuppet.fleet.exports.policy import DANGEROUS
from localpuppet.node.puppet.metaparameters import METAPARAMETERS
from tests.rigs.node import REPOSITORY

PAGE = REPOSITORY / "docs" / "guarded.md"
TYPES = Path(__file__).parents[1] / "data" / "core-types.json"
INTRO = """\
# What guarded drops

A [guarded line](exports.md#which-signers-a-node-trusts) takes a resource without some of its
parameters. Of every type it drops:

{globs}

and Puppet's metaparameters:

{metaparameters}

The table lists the types of Puppet itself and of the modules that Puppet's packages bundle.
`scripts/guarded` writes it from these types, and a test compares it with the installed Puppet.
*Counts* are the parameters that the signer chooses, with the title. A type in **bold** is code or
a right whatever is dropped: name titles and signers.

| type | guarded drops | counts |
|---|---|---|
"""


def core_types() -> dict[str, list[str]]:
    """Return the parameters of each core type."""
    found: dict[str, Any] = json.loads(TYPES.read_text())
    return found


def page() -> str:
    """Return the page."""
    metaparameters = sorted(METAPARAMETERS)
    intro = INTRO.format(
        globs=_code(name for name in GUARDED if name not in METAPARAMETERS),
        metaparameters=_code(metaparameters),
    )
    return intro + "".join(f"{_row(kind, names)}\n" for kind, names in core_types().items())


def _row(kind: str, names: list[str]) -> str:
    dropped = [name for name in names if is_guarded(name, kind)]
    counts = [name for name in names if name not in dropped]
    shown = f"**`{kind}`**" if kind in DANGEROUS else f"`{kind}`"
    return f"| {shown} | {_code(dropped)} | {_code(counts) or 'nothing'} |"


def _code(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
