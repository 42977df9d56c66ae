"""`localpuppet report`: what a run did, resource by resource."""

from tests.rigs.node import Node


def test_a_report_tells_what_failed_changed_was_skipped_and_took_long(node: Node) -> None:
    node.app(
        f"file {{ '{node.root}/made': content => 'x' }}\n"
        "exec { 'bad': command => '/bin/false' }\n"
        "-> notify { 'after': }\n"
        "exec { 'slow': command => '/bin/sleep 0.3' }\n"
    )
    assert node.run("apply").code == 1
    told = node.run("report", "--json")
    assert told.code == 0
    refs = {
        kind: [found["resource"] for found in told.json[kind]]
        for kind in ("failed", "changed", "would_change", "skipped")
    }
    assert refs == {
        "failed": ["Exec[bad]"],
        "changed": [f"File[{node.root}/made]", "Exec[slow]"],
        "would_change": [],
        "skipped": ["Notify[after]"],
    }
    (failed,) = told.json["failed"]
    assert (failed["file"], failed["line"]) == (
        f"{node.root}/modules/app/trunk/app/manifests/init.pp",
        3,
    )
    assert failed["events"][0]["status"] == "failure"
    assert told.json["slowest"][0]["resource"] == "Exec[slow]"
    assert told.json["run"]["outcome"] == "failed"
    shown = node.run("report").out
    assert "Failed 1" in shown
    assert "app/trunk/app/manifests/init.pp:3" in shown
    assert "'/bin/false' returned 1" in shown


def test_a_noop_run_tells_what_would_change(node: Node) -> None:
    node.app(f"file {{ '{node.root}/made': content => 'x' }}")
    assert node.run("apply", "--noop").code == 0
    told = node.run("report", "--json").json
    assert [found["resource"] for found in told["would_change"]] == [f"File[{node.root}/made]"]
    assert "Would change 1" in node.run("report").out


def test_a_run_that_applied_nothing_has_no_report_and_says_so(node: Node) -> None:
    node.app("fail('no')")
    node.run("apply")
    done = node.run("report", "--json")
    told = done.json
    assert (done.code, told["report"]) == (1, False)
    assert told["failed"] == []
    assert "Puppet wrote none" in node.run("report").out
    refused = node.run("report", "20200101")
    assert refused.code == 2
