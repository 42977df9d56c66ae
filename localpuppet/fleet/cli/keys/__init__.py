"""`localpuppet keys`: this node's key, and the keys that it trusts."""

import click

from localpuppet.node.cli.lazy_group import Verbs

# Verb → module, as in main.
VERBS = {
    "init": "fleet.cli.keys.own",
    "list": "fleet.cli.keys.trusted",
    "revoke": "fleet.cli.keys.trusted",
    "show": "fleet.cli.keys.own",
    "trust": "fleet.cli.keys.trusted",
}

EPILOG = """\b
Two nodes that know each other:
  web01# localpuppet keys init
  web01# localpuppet keys show > web01.pem        public: it may be mailed
  lb01#  localpuppet keys trust web01.example.com web01.pem
Through ssh:
  ssh web01 localpuppet keys show | localpuppet keys trust web01.example.com -
"""


@click.group(cls=Verbs, verbs=VERBS, epilog=EPILOG, no_args_is_help=True)
def keys_command() -> None:
    """Make and show this node's key; pin the keys of others.

    Triggers, requests and replies are signed. A node trusts pinned keys and, if identity.ca is set,
    certificates of that CA. See docs/keys.md.
    """
