"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

decides: `limits`, `manifest`, `module_metadata`, `modules`, `source`.
acts: `branches`, `comparison`, `composing`, `fetch`, `release`, `release_records`, `staging`,
  `store`.
packages: `author`, `forge`, `git`, `packages`.
private: `tar`.
"""
