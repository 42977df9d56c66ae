"""A small control repository with a branch, and captures of three nodes, for previews."""

import os
import subprocess
from pathlib import Path

MAIN = {
    "manifest.yaml": "moduledir: modules\n",
    "environment.conf": "modulepath = modules\n",
    "hiera.yaml": """
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - {name: role, path: 'role/%{facts.role}.yaml'}
  - {name: all, path: common.yaml}
""",
    "data/common.yaml": "web::port: 80\nbackup::hour: 3\n",
    "data/role/web.yaml": "web::workers: 2\n",
    "manifests/site.pp": """
node default {
  include "role::${facts['role']}"
}
""",
    "modules/role/manifests/web.pp": "class role::web { include web }\n",
    "modules/role/manifests/db.pp": "class role::db { include backup }\n",
    "modules/web/manifests/init.pp": """
class web(Integer $port, Integer $workers = 1, Sensitive[String] $key = Sensitive('CANARY-1')) {
  package { 'nginx': }
  -> file { '/etc/nginx/nginx.conf': content => template('web/nginx.conf.erb') }
  ~> service { 'nginx': ensure => running }
  file { '/etc/nginx/key': content => $key, mode => '0600' }
}
""",
    "modules/web/templates/nginx.conf.erb": (
        "worker_processes <%= @workers %>;\n"
        "server {\n"
        "  listen <%= @port %>;\n"
        "  server_name <%= @facts['networking']['fqdn'] %>;\n"
        "}\n"
    ),
    "modules/backup/manifests/init.pp": """
class backup(Integer $hour) {
  file { '/etc/backup.conf': content => "hour = ${hour}\\n" }
}
""",
}
# What a branch changes.
BRANCH = {
    "data/common.yaml": "web::port: 8080\nbackup::hour: 3\n",
    "modules/web/manifests/init.pp": MAIN["modules/web/manifests/init.pp"]
    .replace("CANARY-1", "CANARY-2")
    .replace(
        "  file { '/etc/nginx/key'",
        "  service { 'nginx-exporter': ensure => running, require => Package['nginx'] }\n"
        "  file { '/etc/nginx/key'",
    ),
    "modules/role/manifests/db.pp": "class role::db { include backup include monitoring }\n",
}
NODES = {"web01": ("web", 1), "web02": ("web", 2), "db01": ("db", 3)}


class ControlRepository:
    """A control repository with captures of nodes.

    Args:
        directory: A directory that exists; the repository is `control` in it, and the captures of
            nodes are in `nodes`.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "control"
        self.nodes = directory / "nodes"
        self.path.mkdir()
        self.nodes.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit(MAIN, "main")
        self.git("checkout", "-q", "-b", "exporter")
        self.commit(BRANCH, "export metrics")
        for name, (role, number) in NODES.items():
            (self.nodes / f"{name}.example.com.yaml").write_text(
                f"facts:\n  role: {role}\n"
                "  networking:\n"
                f"    fqdn: {name}.example.com\n    hostname: {name}\n    ip: 10.0.0.{number}\n"
            )

    def commit(self, files: dict[str, str], message: str) -> None:
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def git(self, *arguments: str) -> None:
        author = {"NAME": "demo", "EMAIL": "demo@example.com", "DATE": "2026-11-25T00:00:00Z"}
        env = {
            f"GIT_{who}_{key}": text
            for who in ("AUTHOR", "COMMITTER")
            for key, text in author.items()
        }
        subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, **env},
            check=True,
        )
