"""Three real nodes with real Puppet, and `localpuppet web --puppetdb` beside them.

| node | last run |
|---|---|
| web01 | changed a file |
| db01 | failed, after a good one: a resource fails with a message |
| lb01 | noop, after a good one: a file would change |

All three publish their catalogs. The API runs on `api01`, which has a key and no agent.
"""

import json
import re
import subprocess

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.waiting import wait_until
from tests.web.puppetdb.clients.replay import exchange

ROLES = {"web01": "web", "db01": "db", "lb01": "lb"}
REPORTS = 5
NAMES = sorted(f"{name}.example.com" for name in ROLES)
RELATION = "relation orders does not exist"
POLICY = "policy default deny\nallow\tchoria=api01.example.com\treport log catalog\t*\t*\n"
CLASSES = {
    "init": """
class site(String $directory, Boolean $broken) {
  $role = $facts['role']
  file { "${directory}/${role}.conf": content => "role = ${role}\\n" }
  case $role {
    'web': {
      include site::apache
      file { "${directory}/agent.rb": content => '', tag => 'mcollective_agent_package_server' }
      @@prometheus::scrape_job { $trusted['certname']:
        job_name => 'node',
        targets  => ["${trusted['certname']}:9100"],
        labels   => { 'role' => $role },
      }
    }
    'db': {
      if $broken {
        exec { 'migrate the database':
          command   => '/bin/echo ERROR: RELATION; /bin/false',
          provider  => shell,
          logoutput => true,
          require   => File["${directory}/${role}.conf"],
        }
      }
    }
    default: { }
  }
}
""".replace("RELATION", RELATION),
    "apache": """
class site::apache {
  notify { 'apache is configured': }
}
""",
}
SCRAPE_JOB = """
define prometheus::scrape_job(String $job_name, Array[String] $targets, Hash $labels) { }
"""


class RealNodes:
    """The nodes and the server of the API."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.members = [self._node(name, role) for name, role in ROLES.items()]
        self.api = fleet.add_one("api01")
        self._process: subprocess.Popen[str] | None = None

    def _node(self, name: str, role: str) -> Member:
        member = self.fleet.add_one(name, puppet=True, inventory={"catalogs": True})
        for part, text in CLASSES.items():
            member.node.write(f"modules/app/trunk/site/manifests/{part}.pp", text)
        member.node.write("modules/app/trunk/prometheus/manifests/scrape_job.pp", SCRAPE_JOB)
        member.node.write("modules/app/trunk/manifest.yaml", "modulepath: []\n")
        self._give(member, broken=False)
        member.node.write("policies/puppet.policy", POLICY)
        facts = {"role": role, "mcollective": {"server": {"collectives": ["mcollective"]}}}
        member.node.write("puppet/var/facts.d/site.json", json.dumps(facts))
        return member

    def _give(self, member: Member, *, broken: bool) -> None:
        given = {"directory": str(member.root), "broken": broken}
        text = json.dumps({"app": "app/trunk", "classes": {"site": given}})
        member.node.write("input.yaml", text)

    def happens(self) -> None:
        """Have all that the table lists happen."""
        for member in self.members:
            member.start()
        self.fleet.present(*self.members)
        _, db, lb = self.members
        for member in self.members:
            assert member.run("apply").code == 0, member.log
        self._give(db, broken=True)
        db.run("apply", code=1)
        (lb.root / "lb.conf").write_text("changed by hand\n")
        lb.run("apply", "--noop", code=0)

    def serve(self) -> str:
        """Start the API; return its address as soon as it has all reports."""
        words = ("web", "--listen", "127.0.0.1:0", "--puppetdb", "127.0.0.1:0")
        self._process = self.api.node.start(*words)
        lines = [read_line(self._process) for _ in range(3)]
        found = [re.search(r"PuppetDB.*(http://127\.0\.0\.1:\d+)", line) for line in lines]
        api = next(match[1] for match in found if match)
        wait_until(lambda: self._reports(api) == REPORTS, lambda: str(self._reports(api)))
        return api

    def _reports(self, api: str) -> int | str:
        """Return the number of reports, or why there are none."""
        status, answer = exchange(api, "GET", "/pdb/query/v4/reports")
        return len(answer) if status == 200 else str(answer)

    def end(self) -> None:
        """End the API."""
        self.api.node.end()
