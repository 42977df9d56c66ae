"""What the maker of a release does in a working copy: lock, check, tag.

decides: `hierarchy`.
acts: `checking`, `compiling`, `data`, `leftovers`, `locker`, `tagging`.
"""
