"""Puppet code on the node: releases, how a node fetches them, and how it verifies them.

decides: `difference`, `limits`, `lock`, `manifest`, `source`, `staged`.
acts: `calling`, `classifier`, `comparing`, `fetch`, `garbage`, `interfaces`, `ledger`,
    `lookup`, `provider`, `reading`, `release_files`, `release`, `staged_records`, `staging`,
    `store`, `tag_memory`, `threshold`, `verification_cache`.
packages: `forge`, `git`, `layout`, `making`, `mutable`, `packages`, `puppetfile`, `single`.
private: `interface`, `tree`.
"""
