"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `result`.
decides: `difference`.
acts: `compile_request`, `engine`, `node_capture`, `nodes_directory`, `previewing`, `revisions`,
  `stored_results`, `workspace`.
private: `cache`, `cache_file`, `read_set`, `release_index`.
"""
