"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `policy_lines`, `policy`, `quota`.
acts: `authority`, `keys`, `policy_file`, `seen`, `signing`.
"""
