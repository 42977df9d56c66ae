"""The agent as two processes: an unprivileged one on the bus, and one that runs Puppet.

acts: `client`, `protocol`, `server`.
"""
