"""What a change of a release does to every node: catalogs before and after it, without a fleet.

A function may raise `InvalidInputError` for what people write, and `StateError` for this machine.

values and ports: `compile_request`, `node_capture`, `result`.
decides: `difference`, `preview_limits`.
shows: `drawing`, `wording`.
acts: `engine`, `nodes_directory`, `previewing`, `revisions`, `workspace`.
private: `cache`, `cache_file`, `read_set`, `release_index`, `stored_results`.
"""
