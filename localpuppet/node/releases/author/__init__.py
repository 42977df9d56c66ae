"""The steps of a release's author in a working copy: import, lock, tag, sign; what of it counts.

decides: `puppetfile`.
acts: `hiera_data`, `lock_writing`, `puppetfile_import`, `tagging`.
"""
