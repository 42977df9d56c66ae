"""What people say to the process that goes on with a rollout, on its machine and from others.

decides: `message`, `word`.
acts: `hearing`, `noting`, `saying`, `saying_here`.
"""
