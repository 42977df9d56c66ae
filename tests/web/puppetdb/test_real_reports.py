"""Reports of real runs, from the API of a real process: their log, and what a kill leaves."""

import signal
from typing import Any

from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.puppetdb.test_real_catalogs import Api

RIGHT = "policy default deny\nallow\tchoria={who}\tlog\t*\t*\n"
TWICE = "file { '/tmp/x': }\nfile { '/tmp/x': }"


def newest(api: Api, name: str, reason: str) -> dict[str, Any]:
    """Wait until the first line of a node's newest report has a text; return the report."""
    query = ["and", ["=", "latest_report?", True], ["=", "certname", name]]

    def found() -> list[dict[str, Any]]:
        code, reports = api.ask("reports", query)
        if code != 200:  # the view is not read yet
            return []
        return [one for one in reports if reason in one["logs"]["data"][0]["message"]]

    reports: list[dict[str, Any]] = wait_until(found, lambda: str(api.ask("reports", query)))
    return reports[0]


def everything(api: Api) -> list[str]:
    return sorted(str(row) for path in ("reports", "nodes", "events") for row in api.ask(path)[1])


def test_a_failed_compilation_is_failed_with_its_log_and_a_kill_loses_nothing(
    nats_fleet: Fleet,
) -> None:
    nats_fleet.bus.timeout = SHORT
    a, b = nats_fleet.add("a", "b", puppet=True)
    nats_fleet.start()
    api = Api(a)
    try:
        b.node.app("notify { 'one': }")
        assert b.run("apply").code == 0
        assert newest(api, b.name, "changed")["status"] == "changed"
        b.node.app(TWICE)
        assert b.run("apply").code == 1
        report = newest(api, b.name, "Duplicate declaration")
        assert report["status"] == "failed"
        code, text = api.ask(f"reports/{report['hash']}/logs")
        assert (code, "no policy" in text) == (503, True), text
        b.node.write("policies/puppet.policy", RIGHT.format(who=a.name))
        lines = api.ask(f"reports/{report['hash']}/logs")[1]
        assert any("Duplicate declaration" in line["message"] for line in lines), lines
        # After its presence, the node's summary is in the memory.
        wait_until(lambda: newest(api, b.name, "Duplicate")["metrics"]["data"], str)
        known = everything(api)
    finally:
        api.process.send_signal(signal.SIGKILL)
        api.process.communicate(timeout=PATIENCE)
    nats_fleet.bus.server.kill()
    api = Api(a)
    try:
        assert everything(api) == known
    finally:
        nats_fleet.bus.server.start()
        api.close()
