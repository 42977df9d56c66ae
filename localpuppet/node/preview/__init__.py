"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `capture`, `ports`, `result`, `withheld`.
decides: `difference`, `grouping`, `patterns`, `placeholders`.
acts: `nodes_directory`, `release_index`.
private: `data_keys`, `read_set`.
"""
