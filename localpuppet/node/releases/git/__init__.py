"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`.
acts: `git_names`, `git_modules`, `program`, `signatures`.
touches the world: `mirrors`, `work_tree`.
"""
