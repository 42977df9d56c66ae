"""Packages that every layer uses: formats, this machine, HTTP, shipped files.

They know nothing of Puppet. A function that reads or writes files raises `StateError` if the disk
fails.

packages: `formats`, `machine`, `share`.
modules: `bounded_dict`, `errors`, `http`, `value`.
"""
