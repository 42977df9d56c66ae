"""What the maker of a release does in a working copy: lock, check, tag.

acts: `checking`, `locker`, `tagging`.
"""
