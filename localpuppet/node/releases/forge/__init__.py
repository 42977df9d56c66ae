"""The Forge: modules by OWNER/NAME and version, as archives.

private: `forge_modules`, `pins`.
"""
