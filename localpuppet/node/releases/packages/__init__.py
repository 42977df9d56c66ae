"""Releases as files: .deb, .rpm and release packs.

acts: `package_staging`, `directory`.
touches the world: `tools`.
"""
