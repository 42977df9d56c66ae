"""`check` and `exports --policy` show, before a run, what collectors would take from which node."""

from localpuppet.fleet.exports.held import FILE, HeldExports
from localpuppet.fleet.exports.recording import CollectorRecord, note_collected
from localpuppet.node.runs.run_records import RunDirectory
from tests.fleet.make import resource
from tests.rigs.fleet import Fleet

RUN = "20261120T140000.000000Z-00aa"
A, B = "a.example.com", "b.example.com"


def test_check_shows_what_the_collectors_of_the_newest_run_would_take(fleet: Fleet) -> None:
    (me,) = fleet.add("me", puppet=True)
    me.node.app("")
    me.node.write("policies/collect.policy", f"{A}\tHost\t*\n")
    held = HeldExports(me.node.state / FILE)
    held.hold(A, "1", [resource("Host", "x", "web")])
    held.hold(B, "1", [resource("Host", "y", "web"), resource("File", "/etc/sudoers")])
    held.close()
    assert me.run("check", "--json").json["collectors"] == []

    run = RunDirectory(me.node.state / "runs" / RUN)
    run.path.mkdir(parents=True, mode=0o700)
    at = "2026-11-20T14:00:00Z"
    note_collected(run, CollectorRecord(type="Host", filter=["tag", "==", "web"], at=at))
    note_collected(run, CollectorRecord(type="File", filter=None, at=at))
    host, file = me.run("check", "--json").json["collectors"]
    assert [(one["node"], one["resource"]) for one in host["resources"]] == [(A, "Host[x]")]
    assert [(one["node"], one["resource"]) for one in host["left_out"]] == [(B, "Host[y]")]
    assert (file["digest"], "no policy line names File" in file["reason"]) == (None, True)
    shown = me.run("check").out
    for text in (
        "The collectors of the newest run would get now\n",
        "  Host <<| tag == 'web' |>>\n",
        f"    1 resource of {A}\n",
        f"    left out: Host[y] of {B}: no policy line covers this signer and title\n",
        f"    none: File[/etc/sudoers]: {B} exports it, and no policy line",
    ):
        assert text in shown, shown

    lines = me.run("inventory", "exports", "--policy")
    assert "Host <<| tag == 'web' |>>" in lines.err
    assert "Host <<|" not in lines.out
    assert len(me.run("inventory", "exports", "--policy", "--json").json["collectors"]) == 2

    (me.node.state / FILE).write_bytes(b"rubbish" * 1000)
    damaged = me.run("check")  # a copy of other nodes' exports makes no input of this node invalid
    assert (damaged.code, damaged.out.count("held.sqlite: is damaged")) == (0, 2), damaged.err
