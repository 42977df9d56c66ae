"""The agent: a service that turns triggers, requests and a timer into runs of its node.

decides: `confirmation`.
acts: `code_calls`, `agent`, `bus_session`, `confirming`, `entry_lender`,
  `rollout_steps`, `run_service`, `split`.
touches the world: `fork_runner`, `service_log`.
"""
