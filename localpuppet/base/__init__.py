"""What every layer uses: formats, this machine, shipped files; no knowledge of Puppet.

packages: `formats`, `machine`, `share`.
modules: `errors`.
"""
