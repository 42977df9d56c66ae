"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `policy`, `policy_lines`, `quota`.
acts: `authority`, `keys`, `policy_file`, `seen`, `signing`.
"""
