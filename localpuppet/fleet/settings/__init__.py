"""The fleet's settings in `localpuppet.yaml` and `localpuppet-agent.yaml`, checked.

decides: `fleet`, `peers`.
private: `inventory`.
"""
