"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`, `modules`, `names`.
acts: `program`, `signatures`.
touches the world: `mirrors`, `work_tree`.
"""
