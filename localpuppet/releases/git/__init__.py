"""Git, as releases need it: mirrors, tags and their signatures, trees as bytes.

decides: `names`, `tags`.
acts: `mirror`, `program`, `signatures`.
touches the world: `mirrors`, `work_tree`.
ports: `repository`.
"""
