"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`, `names`.
acts: `program`, `public`, `signatures`.
touches the world: `mirrors`, `work_tree`.
ports: `repository`.
"""
