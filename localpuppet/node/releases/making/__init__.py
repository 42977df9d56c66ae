"""The steps of a release's maker in a working copy: lock, check, tag, sign.

acts: `checking`, `compiling`, `leftovers`, `locker`, `tagging`.
private: `data`, `hierarchy`, `own_modules`.
"""
