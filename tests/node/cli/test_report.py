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


def test_a_report_of_a_noop_run_lists_resources_that_would_change(node: Node) -> None:
    node.app(f"file {{ '{node.root}/made': content => 'x' }}")
    node.run("apply", "--noop", code=0)
    report = node.run("report", "--json").json
    assert [row["resource"] for row in report["would_change"]] == [f"File[{node.root}/made]"]
    assert "Would change 1" in node.run("report").out


def test_the_command_reports_that_a_run_without_a_catalog_has_no_report(node: Node) -> None:
    node.app("fail('no')")
    node.run("apply")
    done = node.run("report", "--json")
    answer = done.json
    assert (done.code, answer["report"]) == (1, False)
    assert answer["failed"] == []
    assert "Puppet wrote none" in node.run("report").out
    node.run("report", "20200101", code=2)
