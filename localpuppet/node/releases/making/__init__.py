"""The steps of a release's maker in a working copy: lock, check, tag, sign.

decides: `hierarchy`, `signing_tree`.
acts: `checking`, `compiling`, `countersigning`, `data`, `leftovers`, `locker`, `own_modules`,
    `tagging`.
"""
