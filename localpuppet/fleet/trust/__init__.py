"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `policy`, `quota`.
acts: `authority`, `keys`, `seen`, `signing`.
"""
