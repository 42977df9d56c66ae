"""Exported resources: the files of the package, and whole catalogs."""
