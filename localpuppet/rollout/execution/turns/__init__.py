"""The turns that nodes take: when one may run, and how its node is heard of.

decides: `knowing`.
acts: `overtaken`, `taking`.
"""
