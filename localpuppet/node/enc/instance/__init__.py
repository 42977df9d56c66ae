"""Instance data: the cloud's data about the machine of this node.

decides: `data`, `fact_names`, `facts`, `places`.
acts: `handover`, `lease_files`, `services`, `source`.
touches the world: `client`.
private: `cloud_init`, `lease`.
"""
