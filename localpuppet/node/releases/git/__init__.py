"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`, `git_names`.
acts: `git_modules`, `program`, `signatures`.
touches the world: `mirrors`, `work_tree`.
"""
