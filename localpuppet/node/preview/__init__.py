"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `capture`, `ports`, `result`.
decides: `difference`.
acts: `engine`, `nodes_directory`, `previewing`, `revisions`, `workspace`.
private: `cache`, `cache_file`, `finding`, `read_set`, `release_index`.
"""
