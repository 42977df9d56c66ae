"""Preview results for tests of their output formats."""

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ParameterChange,
    RelationshipChange,
    ResourceChange,
)
from localpuppet.node.preview.result import (
    BOTH,
    FIXED,
    NEW,
    SAME,
    UNREADABLE,
    BlindSpot,
    ChangeGroup,
    ForbiddenDifference,
    ImpureNode,
    NodeFailure,
    PreviewResult,
    PreviewRevision,
    PreviewStatistics,
    RevisionWarning,
)

BASE = PreviewRevision(name="main", commit="3f2a1c9d0b1e4f5a6b7c8d9e0f1a2b3c4d5e6f70")
HEAD = PreviewRevision(name="HEAD", commit="8be0c2d1e3f4a5b6c7d8e9f0a1b2c3d4e5f60718")
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07</details></code></pre><script>alert(1)</script>"
    "<img src=x onerror=alert(2)> `` ` ```\n```\n# heading\n[a](javascript:alert(3)) "
    "@admins #1 | $title \u202e ⟨ip⟩"
)


def changed(title: str, **values: tuple[Json, Json]) -> ResourceChange:
    return ResourceChange(
        action=CHANGED,
        type="File",
        title=title,
        parameters=tuple(
            ParameterChange(name=name, before=before, after=after)
            for name, (before, after) in values.items()
        ),
    )


def group(difference: CatalogDifference, *names: str) -> ChangeGroup:
    return ChangeGroup(difference=difference, nodes=names)


def nodes(role: str, number: int) -> tuple[str, ...]:
    return tuple(f"{role}{index:02}.example.com" for index in range(1, number + 1))


def usual() -> PreviewResult:
    lines = [f"    server 10.0.0.{number}:8080;\n" for number in range(1, 9)]
    before = "".join(["upstream app {\n", *lines, "}\n"])
    after = before.replace("10.0.0.5:8080", "10.0.0.5:8443").replace(
        "}\n", "    keepalive 16;\n}\n"
    )
    web = CatalogDifference(
        resources=(
            changed("/etc/nginx/nginx.conf", content=(before, after), mode=("0644", "0640")),
            changed("/etc/nginx/key", content=({"__ptype": "Sensitive"}, {"__ptype": "Sensitive"})),
            ResourceChange(
                action=ADDED,
                type="Service",
                title="nginx-exporter",
                parameters=(
                    ParameterChange(name="enable", before=None, after=True),
                    ParameterChange(name="ensure", before=None, after="running"),
                ),
            ),
        ),
        relationships=(
            RelationshipChange(
                action=ADDED,
                source="Package[nginx]",
                relationship="notifies",
                target="File[/etc/nginx/nginx.conf]",
            ),
        ),
    )
    database = CatalogDifference(
        classes_added=("backup::client",),
        classes_removed=("backup",),
        resources=(
            changed("/etc/⟨hostname⟩.conf", owner=(None, "root"), options=([1], {"a": [True]})),
            ResourceChange(action=REMOVED, type="Cron", title="backup"),
        ),
    )
    return PreviewResult(
        base=BASE,
        head=HEAD,
        nodes=1_204,
        groups=(
            ChangeGroup(
                difference=web, nodes=nodes("web", 26), roles=("web",), restarts=("Service[nginx]",)
            ),
            ChangeGroup(difference=database, nodes=nodes("db", 5), roles=("db", "db-replica")),
        ),
        failures=(
            *(
                NodeFailure(
                    node=node,
                    kind=NEW,
                    message=f"Could not find class ::ntp::client for {node}",
                    file="manifests/site.pp",
                    line=12,
                )
                for node in nodes("mail", 2)
            ),
            NodeFailure(
                node="old1",
                kind=BOTH,
                message="Evaluation Error: Error while evaluating a Resource Statement,"
                " Evaluation Error: no role",
            ),
            NodeFailure(node="old3", kind=SAME, message="no data", file="y.pp", line=3),
            NodeFailure(node="old4", kind=UNREADABLE, message="old4.json: is not JSON"),
            NodeFailure(node="old2", kind=FIXED, message="Syntax error at '}'", file="x.pp"),
        ),
        violations=(
            ForbiddenDifference(
                rule="removed:Cron", reference="Cron[backup]", nodes=nodes("db", 5)
            ),
        ),
        blind_spots=(
            BlindSpot(
                files=("modules/site/lib/facter/role.rb",),
                reason="a custom fact changed",
                nodes=nodes("all", 1_204),
            ),
        ),
        impure=(ImpureNode(node="web01.example.com", reasons=("Time.now", "rand")),),
        statistics=PreviewStatistics(compiled=37, cached=2_371, seconds=6.24),
    )


def hostile() -> PreviewResult:
    text = HOSTILE
    difference = CatalogDifference(
        classes_added=(text,),
        resources=(
            changed(text, content=(f"a\n{text}\n", f"b\n{text}\n"), mode=(text, [text])),
            changed("A" * 1_000_000, mode=("x" * 1_000_000, "y\n" * 500_000)),
            ResourceChange(
                action=REMOVED,
                type=text,
                title=text,
                parameters=(ParameterChange(name=text, before={text: text}, after=None),),
            ),
        ),
        relationships=(
            RelationshipChange(action=REMOVED, source=text, relationship="before", target=text),
        ),
    )
    return PreviewResult(
        base=PreviewRevision(name=text),
        head=PreviewRevision(name=text),
        nodes=3,
        groups=(ChangeGroup(difference=difference, nodes=("a",), roles=(text,)),),
        failures=(NodeFailure(node="b", kind=NEW, message=text, file=text, line=1),),
        violations=(ForbiddenDifference(rule=text, reference=text, nodes=("a",)),),
        blind_spots=(BlindSpot(files=(text,), reason=text, nodes=("a", "b", "c", "d")),),
        impure=(ImpureNode(node="a", reasons=(text,)),),
        warnings=(RevisionWarning(revision=text, text=text),),
    )


def large(*, nodes: int, groups: int) -> PreviewResult:
    text = "".join(f"line {number} of a long file\n" for number in range(200))
    return PreviewResult(
        base=BASE,
        head=HEAD,
        nodes=nodes + 100,
        groups=tuple(
            ChangeGroup(
                difference=CatalogDifference(
                    resources=tuple(
                        changed(
                            f"/etc/a/long/path/of/group{index:03}/file{number}.conf",
                            content=(text, text.replace("line 7 ", f"group {index} ")),
                        )
                        for number in range(5)
                    )
                ),
                nodes=tuple(
                    f"node{number:05}.sub.example.com" for number in range(index, nodes, groups)
                ),
                roles=(f"role{index}",),
            )
            for index in range(groups)
        ),
        failures=tuple(
            NodeFailure(node=f"bad{number}", kind=NEW, message=f"error {number} " + "x" * 900)
            for number in range(100)
        ),
    )
