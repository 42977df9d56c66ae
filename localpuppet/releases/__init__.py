"""Puppet code on the node: what a release is, how it comes here, and that it is what was locked.

decides: `difference`, `interface`, `lock`, `manifest`, `puppetfile`, `source`, `staged`, `tree`.
acts: `catalogs`, `checking`, `classifier`, `comparing`, `fetch`, `garbage`, `interfaces`, `ledger`,
    `locker`, `lockfile`, `provider`, `reading`, `release`, `staged_records`, `staging`, `store`, `tagging`, `verified`.
inner rooms: `git`, `packages`.
"""
