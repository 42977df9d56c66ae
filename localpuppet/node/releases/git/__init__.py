"""Git for releases: mirrors, tags and their signatures, trees as bytes.

decides: `access`, `limits`, `names`, `signer`, `words`.
acts: `checkout`, `committed_tree`, `countersignatures`, `ignored`, `kept_mirrors`, `listing`,
    `mirror`, `program`, `signatures`, `tags`.
touches the world: `mirrors`, `work_tree`.
ports: `repository`.
"""
