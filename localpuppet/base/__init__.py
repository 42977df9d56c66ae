"""What every layer uses: formats, this machine, HTTP, shipped files; no knowledge of Puppet.

A function that reads or writes files raises `StateError` if the disk refuses.

packages: `formats`, `machine`, `share`.
modules: `errors`, `http`.
"""
