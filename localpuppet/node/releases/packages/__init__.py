"""Releases as files: .deb, .rpm and release packs.

acts: `directory`, `package_staging`.
touches the world: `tools`.
"""
