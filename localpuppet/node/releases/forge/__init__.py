"""The Forge: modules by OWNER/NAME and version, as archives.

private: `client`, `modules`, `pins`.
"""
