"""Tells a person which keys of sealed groups do not count, and asks about those to be trusted."""

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.cli import render
from localpuppet.node.cli.command import confirm, option

if TYPE_CHECKING:
    from localpuppet.node.sealed.sealed_files import SealedGroup
    from localpuppet.node.sealed.trust import SealedTrust

MAX_SHOWN = 3  # keys in a hint
trust_option = option(
    "--trust trusted KEY",
    "Trust this key of a sealed group without a question (repeatable).",
    multiple=True,
)


def show_left_out(faults: Iterable[InvalidInputError]) -> None:
    """Show why nodes are left out of a group."""
    for fault in faults:
        render.say(f"left out: {fault}", err=True)


def require_trust(
    trust: "SealedTrust", group: "SealedGroup", given: Collection[str], *, holders: bool = False
) -> None:
    """Show the keys that are not known, and ask; the answer counts from then on.

    Args:
        given: Keys that the person named as trusted.
        holders: Whether operators and members count, too.

    Raises:
        InvalidInputError: There is no terminal to ask at.
    """
    unknown = trust.unknown(group, holders=holders)
    asked = [claim for claim in unknown if claim.key not in given]
    if unknown:
        render.say(
            f"not in {trust.tag or 'a verified release'}, and not approved by you:", err=True
        )
    for claim in unknown:
        render.say(f"  {'+' if claim.key in given else '?'} {claim.text}", err=True)
    if asked:
        if not render.on_terminal(sys.stdin):
            keys = " ".join(f"--trust {claim.key}" for claim in asked[:MAX_SHOWN])
            raise InvalidInputError(
                "the holders of these keys could read what is sealed next",
                where=f"sealed/groups/{group.name}.yaml",
                hint="'git fetch --tags' if a release has them; if you know whose keys they are,"
                f" {click.style(keys, bold=True)}",
            )
        what = "this key" if len(asked) == 1 else "these keys"
        confirm(f"trust {what} of {group.name}", yes=False)
    if unknown:
        trust.approve(group, unknown)
