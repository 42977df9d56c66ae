"""Releases as files: .deb, .rpm and release packs.

decides: `naming`.
acts: `building`, `directory`, `pack`, `staging`.
touches the world: `tools`.
ports: `ports`.
"""
