"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

A function may raise `InvalidInputError` for what people write, and `StateError` for this machine.

decides: `limits`, `manifest`, `module_metadata`, `modules`, `source`.
acts: `branches`, `comparison`, `composing`, `fetch`, `ledger`, `release`, `release_files`,
  `staged_records`, `staging`, `store`, `verification`.
packages: `author`, `forge`, `git`, `packages`.
private: `module_versions`, `tar`.
"""
