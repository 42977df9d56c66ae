"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `constraints`, `policy_lines`, `policy`, `quota`.
acts: `authority`, `keys`, `policy_file`, `revocation`, `seen`, `signing`.
"""
