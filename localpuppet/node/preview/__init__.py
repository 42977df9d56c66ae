"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `compile_request`, `node_capture`, `result`.
decides: `difference`, `preview_limits`.
shows: `drawing`, `wording`.
acts: `engine`, `nodes_directory`, `previewing`, `workspace`.
private: `cache`, `cache_file`, `read_set`, `release_index`.
"""
