"""What the maker of a release does in a working copy: lock, check, tag, sign.

decides: `hierarchy`, `signing_tree`.
acts: `checking`, `compiling`, `countersigning`, `data`, `leftovers`, `locker`, `own_modules`,
`tagging`.
"""
