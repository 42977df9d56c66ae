"""A node that listens: what it hears becomes runs, at most one at a time, and none is lost.

decides: `timer`.
acts: `admission`, `agent`, `asking`, `awaited_entries`, `bus_session`, `candidates`,
    `deployments`, `export_calls`, `inventory_calls`, `jobs`, `lock_users`,
    `noticing`, `puppet_calls`, `restored_steps`, `rollout_steps`, `run_service`, `run_side`,
    `status`, `trigger_calls`, `warming`.
touches the world: `command_runner`, `fork_runner`, `log`.
ports: `runner`.
inner rooms: `confirming`, `reactions`, `split`.
"""
