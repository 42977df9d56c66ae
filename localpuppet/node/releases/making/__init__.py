"""The steps of a release's maker in a working copy: lock, check, tag, sign.

acts: `checking`, `leftovers`, `locker`, `tagging`.
private: `data`.
"""
