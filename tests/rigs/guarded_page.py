"""Write docs/reference/guarded-lines.md: what a guarded line drops of each core type."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from localpuppet.fleet.exports.collectors import DANGEROUS
from localpuppet.fleet.exports.resource import GUARDED, is_guarded
from localpuppet.node.puppet.types import METAPARAMETERS
from tests.rigs.node import REPOSITORY

PAGE = REPOSITORY / "docs/reference/guarded-lines.md"
TYPES = Path(__file__).parents[1] / "data" / "core-types.json"
INTRO = """\
# Guarded lines

Which parameters of an exported resource a `guarded` line of the
[collect policy](collect-policy.md) drops. `scripts/guarded` writes this page, and a test compares
it with the installed Puppet.

## Every type

{globs}

and Puppet's metaparameters:

{metaparameters}

## Core types

The table lists the types of Puppet and of the modules that Puppet's packages contain. *Counts* are
the parameters that the signer chooses, beside the title. A type in **bold** is code or a right,
whatever is dropped: name titles and signers for it.

| type | guarded drops | counts |
|---|---|---|
"""


def core_types() -> dict[str, list[str]]:
    """Return the parameters of each core type."""
    types: dict[str, Any] = json.loads(TYPES.read_text())
    return types


def page() -> str:
    """Return the page."""
    metaparameters = sorted(METAPARAMETERS)
    intro = INTRO.format(
        globs=textwrap.fill(_code(name for name in GUARDED if name not in METAPARAMETERS), 100),
        metaparameters=textwrap.fill(_code(metaparameters), 100),
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
