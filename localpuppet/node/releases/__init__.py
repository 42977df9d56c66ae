"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

decides: `difference`, `limits`, `manifest`, `source`, `staged`.
acts: `branches`, `calling`, `classifier`, `comparing`, `composing`, `fetch`, `garbage`,
  `interfaces`, `ledger`, `outdated`, `provider`, `reading`, `release`, `release_files`, `staging`,
  `store`, `tag_memory`, `threshold`, `verification_cache`.
packages: `forge`, `git`, `making`, `packages`, `puppetfile`.
private: `interface`.
"""
