"""Instance data: the cloud's data about the machine of this node.

decides: `data`, `fact_names`, `facts`, `lease`, `places`.
acts: `cloud_init`, `handover`, `lease_files`, `services`, `source`.
touches the world: `client`.
"""
