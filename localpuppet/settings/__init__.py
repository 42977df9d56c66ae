"""What a site sets: `localpuppet.yaml` and `localpuppet-agent.yaml`, checked, with their defaults.

decides: `fleet`, `forge`, `instance`, `inventory`, `node`, `web`.
acts: `files`.
"""
