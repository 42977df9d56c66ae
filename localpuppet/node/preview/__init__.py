"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `capture`, `ports`, `result`.
decides: `difference`, `grouping`.
acts: `cache`, `cache_file`, `engine`, `finding`, `nodes_directory`, `previewing`, `release_index`,
  `revisions`.
private: `read_set`.
"""
