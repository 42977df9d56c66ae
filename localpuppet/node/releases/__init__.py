"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

decides: `difference`, `limits`, `manifest`, `modules`, `source`, `staged`.
acts: `branches`, `calling`, `classifier`, `comparing`, `composing`, `fetch`, `garbage`,
  `interfaces`, `ledger`, `provider`, `reading`, `release`, `release_files`, `staging`, `store`,
  `tag_memory`, `verification`.
packages: `forge`, `git`, `making`, `packages`, `puppetfile`.
private: `interface`, `module_metadata`, `tar`.
"""
