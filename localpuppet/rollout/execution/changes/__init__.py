"""The changes that an operator approved, and the changes beyond them.

decides: `approval`, `comparing`.
"""
