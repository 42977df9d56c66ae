"""Nodes that reach each other over a bus: triggers, requests, inventory, the agent.

packages: `agent`, `bus`, `cli`, `exports`, `inventory`, `leases`, `requests`, `roles`, `settings`,
    `triggers`, `trust`, `wiring`.
"""
