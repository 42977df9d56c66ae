"""Puppet code on the node: what a release is, how it comes here, and that it is what was locked.

decides: `difference`, `interface`, `limits`, `lock`, `manifest`, `module`, `source`, `staged`,
    `tree`.
acts: `catalogs`, `classifier`, `comparing`, `fetch`, `garbage`, `interfaces`, `ledger`,
    `lockfile`, `lookup`, `provider`, `reading`, `release`, `release_files`, `staged_records`,
    `staging`, `store`, `supply`, `tag_memory`, `threshold`, `verified`.
inner rooms: `forge`, `git`, `layout`, `making`, `mutable`, `packages`, `puppetfile`, `single`.
"""
