"""Releases as files: .deb, .rpm and release packs.

acts: `building`, `directory`, `staging`.
touches the world: `tools`.
"""
