"""From the record of a good run to what others hear of it."""

from typing import TYPE_CHECKING

from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.kicks import kick_texts

if TYPE_CHECKING:
    from localpuppet.inventory.facts import GoodRun
    from localpuppet.runs.records import RunDirectory
    from localpuppet.runs.run import Status


def good_run(fleet: FleetWiring, run: "RunDirectory", status: "Status") -> "GoodRun":
    """Return what a good run was, as far as others hear of it; without what it exports.

    Args:
        fleet: The parts of a node of a fleet.
        run: The run.
        status: How it ended.

    Raises:
        StateError: A part of its record cannot be read.
        InvalidInputError: A part is refused.
    """
    from localpuppet.enc.instance.facts import withheld
    from localpuppet.exports.recording import read_collected
    from localpuppet.formats.json_file import read_json
    from localpuppet.formats.names import Environment, NodeName, ReleasePath
    from localpuppet.formats.times import parse_time
    from localpuppet.inventory.component import read_components
    from localpuppet.inventory.entry import AskedQuery
    from localpuppet.inventory.facts import GoodRun
    from localpuppet.puppet.facts import read_classes, read_facts
    from localpuppet.puppet.noted import COMPONENTS, read_noted
    from localpuppet.releases.tag_memory import TagMemory
    from localpuppet.runs.query_record import read_queries

    request = read_json(run.request)
    paths = (request.get("causes") or {}).get("paths") or [[]]
    return GoodRun(
        node=fleet.name,
        at=parse_time(status.finished_at or status.started_at).timestamp(),
        run=status.id,
        release=status.app,
        environment=Environment(request["environment"]),
        parameters=request["node_document"].get("parameters") or {},
        facts=read_facts(run.public),
        withheld=withheld(request.get("instance_facts") or ()),
        classes=read_classes(run.public),
        paths=tuple(tuple(map(NodeName, path)) for path in paths),
        kicks=kick_texts(run.public),
        components=read_components(read_noted(run.public, COMPONENTS)),
        tagged_at=TagMemory(fleet.node.settings.state).tagged_at(ReleasePath(status.app)),
        queries=(
            *(
                AskedQuery(text=query.text, digest=query.digest)
                for query in read_queries(run)
                if query.digest is not None
            ),
            *(
                AskedQuery(text=one.question, digest=one.digest)
                for one in read_collected(run)
                if one.digest is not None
            ),
        ),
    )
