"""`localpuppet report`: the results of a run by resource."""

from tests.rigs.node import Node


def test_a_report_lists_failed_changed_skipped_and_slow_resources(node: Node) -> None:
    node.app(
        f"file {{ '{node.root}/made': content => 'x' }}\n"
        "exec { 'bad': command => '/bin/false' }\n"
        "-> notify { 'after': }\n"
        "exec { 'slow': command => '/bin/sleep 0.3' }\n"
    )
    node.run("apply", code=1)
    report = node.run("report", "--json", code=0)
    refs = {
        kind: [row["resource"] for row in report.json[kind]]
        for kind in ("failed", "changed", "would_change", "skipped")
    }
    assert refs == {
        "failed": ["Exec[bad]"],
        "changed": [f"File[{node.root}/made]", "Exec[slow]"],
        "would_change": [],
        "skipped": ["Notify[after]"],
    }
    (failed,) = report.json["failed"]
    assert (failed["file"], failed["line"]) == (
        f"{node.root}/modules/app/trunk/app/manifests/init.pp",
        3,
    )
    assert failed["events"][0]["status"] == "failure"
    assert report.json["slowest"][0]["resource"] == "Exec[slow]"
    assert report.json["run"]["outcome"] == "failed"
    shown = node.run("report").out
    assert "Failed 1" in shown
    assert "app/trunk/app/manifests/init.pp:3" in shown
    assert "'/bin/false' returned 1" in shown
