"""Nodes that reach each other over a bus: triggers, requests, inventory, the agent.

A function that reads or writes the state directory raises `StateError` if the disk refuses or a
file there is damaged; one that uses the bus raises `UnavailableError` if the bus does not answer in
time or denies access.

In every package, a field store returns the connected bus or raises `UnavailableError`, max_stale is
the seconds for which an answer counts after the view was last current, and a digest is a SHA-256 in
hexadecimal.

packages: `agent`, `bus`, `cli`, `edges`, `exports`, `history`, `inventory`,
    `leases`, `requests`, `triggers`, `trust`.
acts: `kept_catalogs`, `fleet_settings`, `agent_app`, `app`, `captures`, `neighbours`, `publishing`.
"""
