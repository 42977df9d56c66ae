"""Instance data: the cloud's data about the machine of this node.

decides: `data`, `facts`, `places`.
acts: `handover`, `lease_files`, `services`, `source`.
touches the world: `client`.
private: `cloud_init`, `fact_names`, `lease`.
"""
