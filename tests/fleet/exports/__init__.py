"""Exported resources: the files of the room, and whole catalogs."""
