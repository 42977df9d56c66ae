"""Instance data: what the cloud says of the machine that this node is.

decides: `data`, `fact_names`, `facts`, `lease`, `places`.
acts: `cloud_init`, `handover`, `lease_files`, `services`, `source`.
touches the world: `client`.
"""
