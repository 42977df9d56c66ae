"""What a change of a release does to every node: catalogs before and after it, without a fleet.

values and ports: `capture`, `ports`, `withheld`.
acts: `nodes_directory`.
"""
