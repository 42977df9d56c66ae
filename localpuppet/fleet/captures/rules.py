"""Decide what a capture contains: facts that may leave the node, and no value that may be secret.

- Facts that `inventory.hide` matches are left out. All others are in it, whatever `inventory.facts`
  selects: a catalog may depend on any.
- Facts from the cloud's instance data become placeholders, except the role, the instance's id and
  what `capture.show` matches: user data often holds secrets.
- Values become placeholders if their name matches `capture.withhold` or the default patterns, and
  not `capture.show`. The same names count for facts, the input, the site's ENC, and the arguments
  and answers of queries, at any depth. Names of nodes are no such names.

The rules apply when the capture is stored, and again when it is sent: a stricter setting counts at
once.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.node.enc.instance.facts import INSTANCE_ID, withheld
from localpuppet.node.preview.capture import NodeCapture
from localpuppet.node.preview.ports import CapturedQuery
from localpuppet.node.preview.withheld import WithheldKeys, matches, withhold, withhold_all

# Their answers have the names of nodes as keys.
_BY_NODE = ("query_facts", "query_resources")


class CaptureRules(Value):
    """What a capture contains.

    Attributes:
        selection: The site's patterns for facts.
        keys: The names whose values are withheld.
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
                name: withhold_all(value) if name in cloud else value
                for name, value in self._withhold(
                    self.selection.without_hidden(capture.facts)
                ).items()
            },
            trusted=self._withhold(capture.trusted),
            data=replace(
                data,
                classes={name: self._withhold(body) for name, body in data.classes.items()},
                parameters=self._withhold(data.parameters),
            ),
            queries=tuple(
                replace(
                    query,
                    arguments=tuple(withhold(value, self.keys) for value in query.arguments),
                    answer=self._answer(query),
                )
                for query in capture.queries
            ),
        )

    def _withhold(self, values: Mapping[str, Json]) -> dict[str, Json]:
        kept = withhold({**values}, self.keys)
        return kept if isinstance(kept, dict) else {}

    def _answer(self, query: CapturedQuery) -> Json:
        if query.function in _BY_NODE and isinstance(query.answer, dict):
            return {node: withhold(item, self.keys) for node, item in query.answer.items()}
        return withhold(query.answer, self.keys)
