"""The agent: a service that turns triggers, requests and a timer into runs of its node.

acts: `admission`, `agent`, `awaited_entries`, `bus_session`, `jobs`, `lock_users`, `puppet_calls`,
  `request_service`, `rollout_steps`, `run_service`, `run_side`, `status`.
touches the world: `fork_runner`, `log`.
packages: `confirmation`, `reactions`, `split`.
"""
