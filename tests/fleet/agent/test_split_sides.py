"""The agent as two processes of two users, with the real Puppet."""

import asyncio
import json
import os
import signal
import socket
from typing import Any

from localpuppet.fleet.bus.key_value import KeyValueEntry
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, Verifier
from tests.doubles.ports import FakeClock
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, completed
from tests.rigs.split_member import NETWORK, Split


def on_the_bus(split: Split, prefix: str) -> tuple[KeyValueEntry, ...]:
    async def look() -> tuple[KeyValueEntry, ...]:
        async with split.bus.open() as kv:
            return (await kv.list(prefix)).entries

    return asyncio.run(look())


def as_network_side(*words: str) -> int:
    rights: dict[str, Any] = {"user": NETWORK.pw_uid, "group": NETWORK.pw_gid, "extra_groups": []}
    return completed(*words, **rights, check=False).code


def test_a_trigger_runs_puppet_which_speaks_through_the_network_side(split: Split) -> None:
    split.node.app(
        """
        cluster_lock { 'migrate': wait => 10 }
        -> notify { 'migrated': }
        ~> trigger { 'tell': hosts => ['c.example.com'] }
        """
    )
    run_side = split.run_side()
    network_side = split.network_side()
    done = split.other.run("trigger", "a.example.com", "--wait")
    assert done.code == 0, done.out + done.err + run_side.said()
    assert "changed" in done.out
    assert split.node.status()["outcome"] == "changed"
    assert "took the lock migrate for run" in run_side.said()

    # What Puppet sent is signed with a key that the network side has never seen.
    (sent,) = on_the_bus(split, "/puppet_trigger/events/hosts/c.example.com/")
    trusted = TrustedKeys(split.other.root / "trusted")
    signed = Verifier(trusted, None, FakeClock()).verify(sent.value, MessageKind.TRIGGER)
    assert signed.signer == "a.example.com"
    assert json.loads(signed.payload)["path"] == ["b.example.com", "a.example.com"]
    assert list(split.spool.iterdir()) == []

    nodes = json.loads(split.other.run("nodes", "--json").out)["nodes"]
    assert [(node["node"], node["state"]) for node in nodes] == [("a.example.com", "idle")]
    assert nodes[0]["last_run"]["outcome"] == "changed"

    assert as_network_side("test", "-r", str(split.node.root / "localpuppet.yaml")) == 0
    for secret in ("var/keys/node.pem", "var/agent/inbox.sqlite", "var/runs", "node.yaml"):
        assert (split.node.root / secret).exists()
        assert as_network_side("test", "-r", str(split.node.root / secret)) != 0
    assert network_side.end() == 0
    assert run_side.end() == 0


def test_requests_are_answered_by_the_run_side_and_decided_by_its_policy(split: Split) -> None:
    policies = split.node.root / "policies"
    split.node.write(
        "policies/puppet.policy",
        "policy default deny\n"
        "allow\tchoria=b.example.com\trunonce status deploy:app/tags/r2\t*\t*\n",
        0o600,
    )
    policies.chmod(0o700)  # the network side may not even read it
    run_side = split.run_side()
    split.network_side()
    done = split.other.run("runonce", "a.example.com")
    assert done.code == 0, done.out + done.err + run_side.said()
    split.wait_for(run_side, " changed")

    def told() -> bool:
        """Return whether the other node has the result, before the next periodic presence."""
        (found,) = json.loads(split.other.run("nodes", "--json").out)["nodes"]
        return bool(found["last_run"] and found["last_run"]["outcome"] == "changed")

    split.node.wait_until(told)
    done = split.other.run("report", "--node", "a.example.com", code=1)
    assert "denied by policy line 1" in done.out + done.err
    done = split.other.run("trigger", "a.example.com")
    split.wait_for(run_side, "not allowed to trigger this node")
    done = split.other.run("assign", "a.example.com", "app/tags/r2", code=1)
    assert "this node does not take releases of app by request (write app: app/" in done.err


def test_on_its_first_start_the_agent_trusts_its_new_key(split: Split) -> None:
    (split.node.state / "keys" / "node.pem").unlink()
    split.node.write(
        "policies/puppet.policy", "policy default deny\nallow\tchoria=a.example.com\t*\t*\t*\n"
    )
    run_side = split.run_side()
    split.network_side()
    done = split.node.run("runonce", "a.example.com")
    assert done.code == 0, done.out + done.err + run_side.said()
    split.wait_for(run_side, " changed")


def test_what_was_accepted_survives_a_kill_of_the_run_side(split: Split) -> None:
    split.node.run("disable", "-m", "not now", code=0)
    run_side = split.run_side()
    network_side = split.network_side()
    split.other.run("trigger", "a.example.com", code=0)
    split.wait_for(run_side, "accepted a trigger from b.example.com")
    run_side.end(signal.SIGKILL)
    split.node.run("enable", code=0)

    again = split.run_side()
    split.wait_for(again, " changed")
    # The network side reconnects to it and keeps running.
    split.other.run("trigger", "a.example.com", "--wait", code=0)
    assert network_side.process.poll() is None
    assert again.said().count("accepted a trigger") == 1
    assert len(split.node.runs()) == 2


def test_a_trigger_that_is_sent_while_the_network_side_is_down_leads_to_a_run(split: Split) -> None:
    run_side = split.run_side()
    split.network_side().end(signal.SIGKILL)
    split.spooled("0" * 64, b"left behind")
    split.other.run("trigger", "a.example.com", code=0)
    split.network_side()
    split.wait_for(run_side, " changed")
    assert list(split.spool.iterdir()) == []


def test_a_second_network_side_is_refused_and_removes_no_message(split: Split) -> None:
    split.run_side()
    split.network_side()
    message = split.spooled("0" * 64, b"on its way")
    second = split.start(*COMMAND, "agent", "--side", "network", user=NETWORK)
    assert second.process.wait(PATIENCE) == 75
    assert "another agent listens there" in second.said()
    assert message.exists()


def test_the_network_side_is_not_to_be_root(split: Split) -> None:
    done = split.node.run("agent", "--side", "network", code=2)
    assert "the network side must not run as root" in done.err


def test_the_run_side_needs_an_existing_network_user(split: Split) -> None:
    split.node.settings(
        node="a.example.com", **split.bus.settings, agent={"network": {"user": "no-such-user"}}
    )
    done = split.node.run("agent", "--side", "run", code=2)
    assert "the user no-such-user does not exist" in done.err


def test_the_service_manager_may_make_the_socket(split: Split) -> None:
    split.run_socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as given:
        given.bind(str(split.run_socket))
        given.listen()
        os.chown(split.run_socket, 0, NETWORK.pw_gid)
        split.run_socket.chmod(0o660)
        # A client that connects before the service is up waits in the socket's queue.
        with socket.socket(socket.AF_UNIX) as early:
            early.settimeout(PATIENCE)
            early.connect(str(split.run_socket))
            early.sendall(b'{"verb":"hello"}\n')
            command = " ".join((*COMMAND, "agent", "--side", "run"))
            script = f"exec 3<&{given.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec {command}"
            service = split.start("/bin/bash", "-c", script, pass_fds=[given.fileno()])
            with early.makefile("rb") as stream:
                assert json.loads(stream.readline())["node"] == "a.example.com"
        split.network_side()
        split.other.run("trigger", "a.example.com", "--wait", code=0)
        assert service.end() == 0
        assert split.run_socket.exists()  # the service manager owns it


def test_a_passed_descriptor_must_be_a_socket(split: Split) -> None:
    command = " ".join((*COMMAND, "agent", "--side", "run"))
    for before, count, what in (
        ("exec 3</dev/null;", 1, "descriptor 3 is not a socket"),
        ("exec 3<&-;", 1, "descriptor 3 is not a socket"),
        ("", 2, "2 sockets were given"),
    ):
        script = f"{before} LISTEN_PID=$$ LISTEN_FDS={count} exec {command}"
        env = split.node.environment(PYTHONPATH=str(REPOSITORY))
        done = completed("/bin/bash", "-c", script, env=env, check=False)
        assert (done.code, what in done.err) == (2, True), done.err
