"""Puppet code on the node: what a release is, how it comes here, and that it is what was locked.

decides: `difference`, `interface`, `limits`, `lock`, `manifest`, `module`, `source`, `staged`,
    `tree`.
acts: `catalogs`, `checking`, `classifier`, `comparing`, `fetch`, `garbage`, `interfaces`, `ledger`,
    `locker`, `lockfile`, `lookup`, `provider`, `reading`, `release`, `staged_records`, `staging`,
    `store`, `tag_memory`, `tagging`, `verified`.
inner rooms: `forge`, `git`, `layout`, `packages`, `puppetfile`, `single`.
"""
