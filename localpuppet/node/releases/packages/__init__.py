"""Releases as files: .deb, .rpm and release packs.

acts: `directory`, `staging`.
touches the world: `tools`.
"""
