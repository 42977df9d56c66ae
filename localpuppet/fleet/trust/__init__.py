"""Whose signature counts and what the signer may do: keys, certificates, signed messages, policy.

decides: `constraints`, `policy`, `policy_lines`, `quota`.
acts: `authority`, `keys`, `policy_file`, `revocation`, `seen`, `signing`.
"""
