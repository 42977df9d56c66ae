"""`localpuppet apply` is refused because of a hold, a disabled agent or another run."""

import os
import subprocess

from tests.rigs.node import Node, make_node, shell


def test_a_hold_prevents_runs_of_localpuppet_and_of_a_puppet_agent(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.run("disable", "-m", "db migration", "--for", "2h", "--owner", "alice", code=0)
    held = node.run("apply", code=75)
    assert "db migration" in held.err
    assert "alice" in held.err
    assert node.runs() == []
    agent = shell(
        f"puppet agent --test --noop --confdir {node.root}/puppet/conf"
        f" --vardir {node.root}/puppet/var --server 127.0.0.1 --masterport 1"
    )
    assert "db migration" in agent
    assert "held by alice" in node.run("status").out
    others = node.run("enable", code=0)
    assert "still on hold: db migration (held by alice" in others.out
    node.run("apply", code=75)
    assert "ended: db migration" in node.run("enable", "--owner", "alice").out
    node.run("apply", code=0)


def test_the_refusal_names_a_run_of_another_root_with_the_same_puppet(node: Node) -> None:
    fifo = node.root / "fifo"
    os.mkfifo(fifo)
    node.app(f"exec {{ '/bin/cat {fifo}': }}")
    other = make_node(node.root / "other", None)
    puppet = {name: str(node.root / "puppet" / name[:-3]) for name in ("confdir", "vardir")}
    other.settings(puppet=puppet)
    run = node.start("apply")
    with fifo.open("w"):
        refused = other.run("apply", code=75)
        assert "a run of another localpuppet root (pid " in refused.err
        assert f"recorded in {node.state}/runs/{node.recorded()['id']})" in refused.err
    node.finish(run, code=0)
    other.run("apply", code=0)


def test_check_names_the_process_whose_run_lock_blocks_runs(node: Node) -> None:
    node.app("notify { 'hello': }")
    lock = node.root / "puppet/var/state/agent_catalog_run.lock"
    command = ["ruby", "-e", "sleep", "puppet"]
    with subprocess.Popen(command) as ruby, subprocess.Popen(["tail", "-f", command[-1]]) as tail:
        try:
            node.write(str(lock.relative_to(node.root)), str(ruby.pid))
            blocked = f"{lock}: a puppet agent run (pid {ruby.pid}) is using this node"
            assert blocked in node.run("apply").err
            assert f"warning: {blocked}" in node.run("check").err
            lock.write_text(str(tail.pid))
            assert "using this node" not in node.run("check").err
            node.run("apply", code=0)
        finally:
            ruby.kill()
            tail.kill()


def test_a_disabled_puppet_agent_prevents_runs(node: Node) -> None:
    node.app("notify { 'hello': }")
    directories = f"--confdir {node.root}/puppet/conf --vardir {node.root}/puppet/var"
    shell(f"puppet agent --disable 'by the agent' {directories}")
    held = node.run("apply", code=75)
    assert "by the agent" in held.err
    assert "still on hold: by the agent" in node.run("enable").out
    assert "ended: by the agent" in node.run("enable", "--all-owners").out
    node.run("apply", code=0)


def test_a_noop_run_with_despite_hold_runs_during_a_hold(node: Node) -> None:
    node.app(f"file {{ '{node.root}/made': content => 'x' }}")
    node.run("disable", "-m", "db migration")
    node.run("apply", "--noop", code=75)
    despite = node.run("apply", "--noop", "--despite-hold", code=0)
    assert "1 would change" in despite.out
    assert "on hold, and this run changes nothing: db migration" in despite.err
    node.run("apply", "--despite-hold", code=2)
    assert not (node.root / "made").exists()


def test_a_setting_that_puppet_refuses_is_named_with_its_file(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.write("puppet/conf/puppet.conf", "[main]\ncertname = Web01.Example.COM\n")
    refused = node.run("apply")
    assert "Certificate names must be lower case" in refused.err
    assert "(write 'certname' in puppet.conf in lower case)" in refused.err
