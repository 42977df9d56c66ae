"""Derives facts from instance data, and decides which of them leave the node.

- `instance_id` is a fact.
- A line `key=value` of the user data is a fact. Comment signs before the key are ignored, so that a
  line of a script may be a fact: `#role=web`. The key begins the line and is a name. If a key
  occurs several times, the last line wins, as in a shell. Other lines are ignored.
- User data never sets Facter's own facts, Puppet's, or a second `instance_id`.
- User data that is an input, or that is not text, has no such lines.

Example: `facts_of(data).facts == {"instance_id": "i-0a1b", "role": "web"}`.
"""

import re
from collections.abc import Iterable, Mapping

from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.node.enc.instance.data import InstanceData
from localpuppet.node.enc.instance.fact_names import is_own_fact

MAX_FACTS = 256
MAX_VALUE = 4096
INSTANCE_ID = "instance_id"
# Facts that leave the node in any case: its role.
_PUBLISHED = frozenset({"role"})
_LINE = re.compile(r"(?:#+[ \t]*)?([A-Za-z][A-Za-z0-9_]{0,63})[ \t]*=(.*)")


class InstanceFacts(Value):
    """The facts in instance data.

    Attributes:
        facts: Values by name; all of them text.
        left_out: Names of refused facts → the reason, in a few words.
    """

    facts: Mapping[str, str]
    left_out: Mapping[str, str]


def facts_of(data: InstanceData) -> InstanceFacts:
    """Return the facts of instance data."""
    facts = {INSTANCE_ID: data.instance_id}
    left_out: dict[str, str] = {}
    for name, value in _lines(data).items():
        problem = _problem(name, value, len(facts))
        if problem:
            left_out[name] = problem
        else:
            facts[name] = value
    return InstanceFacts(facts=facts, left_out=left_out)


def withheld(names: Iterable[str]) -> frozenset[str]:
    """Return which facts from instance data leave the node only if the settings name them.

    User data often holds secrets; the role is meant for publishing.

    Args:
        names: The facts that a run had from instance data: `instance_facts` of its request.
    """
    return frozenset(names) - _PUBLISHED


def _lines(data: InstanceData) -> dict[str, str]:
    if data.is_input:
        return {}
    try:
        text = data.user_data.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    facts = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match:
            facts[match.group(1).lower()] = match.group(2).strip()
    return facts


def _problem(name: str, value: str, count: int) -> str:
    if count >= MAX_FACTS:
        return f"the user data has more than {MAX_FACTS} facts"
    if name == INSTANCE_ID:
        return "the instance's own id has that name"
    if is_own_fact(name):
        return "Facter or Puppet has facts of that name"
    if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE:
        return f"the value has more than {MAX_VALUE} bytes"
    if one_line(value) != value:
        return "the value has a control character"
    return ""
