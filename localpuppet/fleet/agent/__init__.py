"""The agent: a service that turns triggers, requests and a timer into runs of its node.

acts: `admission`, `agent`, `awaited_entries`, `bus_session`, `compilation_jobs`, `deployments`,
    `export_calls`, `fork_server_keeper`, `inventory_calls`, `lock_users`, `puppet_calls`,
    `request_service`, `restored_steps`, `rollout_steps`, `run_service`, `run_side`, `status`,
    `trigger_calls`.
touches the world: `command_runner`, `fork_runner`, `log`.
ports: `runner`.
packages: `confirmation`, `reactions`, `split`.
private: `jobs`, `run_traces`, `timer`.
"""
