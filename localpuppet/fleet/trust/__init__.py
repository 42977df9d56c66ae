"""Verify signers and authorise their actions: keys, certificates, signed messages, policies.

decides: `policy`.
acts: `key_files`, `authority`, `identity`, `seen`, `signing`.
"""
