"""Decide what a capture contains: facts that may leave the node, and no value that may be secret.

- Facts that `inventory.hide` matches, or whose names are those of secrets, are left out. All others
  are in it, whatever `inventory.facts` selects: a catalog may depend on any.
- Facts from the cloud's instance data become placeholders, except the role, the instance's id and
  what `capture.show` matches: user data often holds secrets.
- Values of the input and of the site's ENC become placeholders if their name matches
  `capture.withhold` or the default patterns, and not `capture.show`.
- Answers of other nodes have only what those publish; in them, and in the arguments of queries,
  values with a secret's name become placeholders, too.

The rules apply when the capture is stored, and again when it is sent: a stricter setting counts at
once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.facts import SECRET, FactSelection
from localpuppet.node.enc.instance.facts import INSTANCE_ID, withheld
from localpuppet.node.preview.capture import NodeCapture
from localpuppet.node.preview.withheld import WithheldKeys, matches, withhold, withhold_all

_ANSWERS = WithheldKeys(SECRET)
_FACTS = WithheldKeys(())


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRules:
    """What a capture contains.

    Attributes:
        selection: The site's patterns for facts.
        keys: The names of parameters whose values are withheld.
    """

    selection: FactSelection
    keys: WithheldKeys

    def of(self, capture: NodeCapture, *, instance_facts: Collection[str]) -> NodeCapture:
        """Return a capture with what may leave the node.

        Args:
            capture: The capture.
            instance_facts: The names of the facts that the cloud's instance data gave to the run.
        """
        cloud = {
            name
            for name in withheld(instance_facts)
            if name != INSTANCE_ID and not matches(name, self.keys.shown)
        }
        data = capture.data
        return replace(
            capture,
            facts={
                name: withhold_all(value) if name in cloud else withhold(value, _FACTS)
                for name, value in self.selection.without_hidden(capture.facts).items()
            },
            data=replace(
                data,
                classes={name: self._withhold(body) for name, body in data.classes.items()},
                parameters=self._withhold(data.parameters),
            ),
            queries=tuple(
                replace(
                    query,
                    arguments=tuple(withhold(value, _ANSWERS) for value in query.arguments),
                    answer=withhold(query.answer, _ANSWERS),
                )
                for query in capture.queries
            ),
        )

    def _withhold(self, values: Mapping[str, Json]) -> dict[str, Json]:
        return {
            name: withhold_all(value) if self.keys.has(name) else withhold(value, self.keys)
            for name, value in values.items()
        }
