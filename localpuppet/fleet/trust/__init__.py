"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `policy`.
acts: `authority`, `identity`, `keys`, `seen`, `signing`.
"""
