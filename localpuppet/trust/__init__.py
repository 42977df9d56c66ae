"""Whose signature counts and what the signer may do: keys, certificates, signed messages, policy.

decides: `policy`.
acts: `authority`, `keys`, `policy_file`, `seen`, `signing`.
"""
