"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

decides: `difference`, `limits`, `manifest`, `modules`, `source`, `staged`.
acts: `branches`, `comparing`, `composing`, `fetch`, `garbage`, `ledger`, `module_metadata`,
  `release`, `release_files`, `staging`, `store`, `tag_memory`, `verification`.
packages: `author`, `forge`, `git`, `packages`.
private: `tar`.
"""
