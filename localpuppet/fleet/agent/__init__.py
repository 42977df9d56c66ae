"""The agent: a service that turns triggers, requests and a timer into runs of its node.

decides: `confirmation`.
acts: `agent`, `bus_session`, `confirming`, `entry_lender`, `puppet_calls`, `retreat`,
  `rollout_steps`, `run_service`, `split`, `status`.
touches the world: `fork_runner`, `service_log`.
"""
