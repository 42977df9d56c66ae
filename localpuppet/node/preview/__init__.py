"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `capture`, `ports`, `result`, `withheld`.
decides: `difference`, `grouping`, `patterns`.
acts: `cache`, `cache_file`, `engine`, `finding`, `layout`, `nodes_directory`, `previewing`,
  `release_index`, `revisions`.
private: `blind_spots`, `catalog_items`, `catalog_store`, `compiler_process`, `data_keys`,
  `eviction`, `placeholders`, `read_set`, `served_files`.
"""
