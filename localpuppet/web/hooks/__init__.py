"""Receivers of pushes: a git host reports one, and localpuppet looks at the source itself.

    receiver (HTTP) -> hook_worker (one look after the other, by git) -> the fleet

acts: `hook_worker`, `receiver`.
decides: `hook_settings`.
"""
