"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`, `limits`, `names`.
acts: `checkout`, `committed_tree`, `ignored`, `kept_mirrors`, `mirror`, `program`, `public`,
    `signatures`, `tags`.
touches the world: `mirrors`, `work_tree`.
ports: `repository`.
private: `countersignatures`, `words`.
"""
