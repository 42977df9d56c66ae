"""The agent: a service that turns triggers, requests and a timer into runs of its node.

decides: `timer`.
acts: `admission`, `agent`, `asking`, `awaited_entries`, `bus_session`, `candidates`,
    `deployments`, `export_calls`, `inventory_calls`, `jobs`, `lock_users`,
    `noticing`, `puppet_calls`, `restored_steps`, `rollout_steps`, `run_service`, `run_side`,
    `status`, `trigger_calls`, `warming`.
touches the world: `command_runner`, `fork_runner`, `log`.
ports: `runner`.
packages: `confirming`, `reactions`, `split`.
"""
