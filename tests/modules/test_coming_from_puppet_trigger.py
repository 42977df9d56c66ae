"""Parts of puppet-trigger that manifests use beside its type: report processor, etcd class."""

import re
import subprocess

from tests.rigs.bench import Bench
from tests.rigs.servers import ETCD, ETCDCTL, free_port
from tests.rigs.tls import Authority
from tests.rigs.waiting import wait_until


def test_the_report_processor_prints_each_trigger_once(bench: Bench) -> None:
    bench.listen()
    done = bench.apply(
        """
        notify { 'a': } ~> trigger { 'refreshed': hosts => ['lb01.example.com'] }
        trigger { 'silent': hosts => ['lb01.example.com'] }
        """,
        "--reports",
        "trigger",
    )
    assert done.code == 2, done.text
    assert done.text.count('"title"=>"refreshed"') + done.text.count('"title" => "refreshed"') == 1
    assert "production" in done.text
    assert "Notify" not in done.text.partition('"resource_type"')[2]


def test_the_class_for_etcd_configures_a_server_that_starts(bench: Bench) -> None:
    config = bench.directory / "etcd"
    authority = Authority(bench.directory)
    tls, client = authority.server(), authority.node("lb01.example.com")
    files = f"certificate => '{tls.certificate}', key => '{tls.key}', ca => '{tls.ca}'"
    code = f"""
        class {{ 'trigger::install::etcd':
          etcd_name => 'etcd1',
          etcd_ip   => '127.0.0.1',
          data_dir  => '{bench.directory}/data',
          config    => '{config}',
          tls       => {{ {files} }},
        }}
        """
    done = bench.apply(
        code, "--tags", "file"
    )  # changes neither packages nor services of this machine
    assert done.code == 2, done.text
    ports = {"2379": str(free_port()), "2380": str(free_port())}
    text = re.sub(r":(2379|2380)", lambda port: f":{ports[port[1]]}", config.read_text())
    url = f"https://127.0.0.1:{ports['2379']}"
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    etcd = subprocess.Popen(
        [ETCD], env={name: value for name, _, value in lines}, stderr=subprocess.DEVNULL
    )
    shown = [f"--cacert={tls.ca}", f"--cert={client.certificate}", f"--key={client.key}"]

    def put(*options: str) -> bool:
        words = [str(ETCDCTL), f"--endpoints={url}", "--dial-timeout=1s", *options, "put", "a", "b"]
        env = {"ETCDCTL_API": "3", "PATH": "/usr/bin"}
        return subprocess.run(words, env=env, capture_output=True, check=False).returncode == 0

    try:
        wait_until(lambda: put(*shown), lambda: f"etcd does not answer: {text}")
        assert not put(shown[0])  # a client needs a certificate
    finally:
        etcd.kill()
        etcd.wait()


def test_the_class_for_etcd_opens_no_server_without_tls_to_the_network(bench: Bench) -> None:
    config = bench.directory / "etcd"
    code = "class {{ 'trigger::install::etcd': config => '{}', {} }}"
    done = bench.apply(code.format(config, "version => '0.4.6', hosts => ['a']"), "--tags", "file")
    assert "version, target and config_hash are ignored" in done.text
    urls = re.findall(r"_URLS=(\S+)", config.read_text())
    assert urls == [f"http://127.0.0.1:{port}" for port in (2379, 2379, 2380, 2380)]
    for more in ("peers => ['a=https://10.0.0.1:2380']", "discovery_url => 'https://x/y'"):
        refused = bench.apply(code.format(config, more), "--tags", "file")
        assert (refused.code, "several members need tls" in refused.text) == (1, True)
