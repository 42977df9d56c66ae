"""Puppet code on the node: what a release is, how it comes here, and that it is what was locked.

decides: `difference`, `environment`, `interface`, `lock`, `manifest`, `module`, `source`,
    `staged`, `tree`.
acts: `catalogs`, `checking`, `classifier`, `comparing`, `composing`, `fetch`, `garbage`,
    `interfaces`, `ledger`, `locker`, `lockfile`, `provider`, `reading`,
    `release`, `staged_records`, `staging`, `store`, `tagging`, `tar`, `verified`.
inner rooms: `forge`, `git`, `packages`, `puppetfile`, `single`.
"""
