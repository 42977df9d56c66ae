"""The steps of a release's maker in a working copy: lock, check, tag, sign.

acts: `checking`, `compiling`, `countersigning`, `locker`, `tagging`.
private: `data`, `hierarchy`, `leftovers`, `own_modules`.
"""
