"""Whose signature counts and what the signer may do: keys, certificates, signed messages, policy.

decides: `constraints`, `policy_lines`, `policy`, `quota`.
acts: `authority`, `keys`, `policy_file`, `revocation`, `seen`, `signing`.
"""
