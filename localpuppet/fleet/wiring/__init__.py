"""From settings to a fleet node: its bus, its identity, its agent.

acts: `agent_service`, `confirmations`, `exports`, `fleet`, `history`, `identity`,
    `inventory`, `neighbours`, `publishing`, `puppet_calls`, `puppet_environment`, `run_async`,
    `settings`, `settings_cache`.
private: `agent_child`, `agent_run_side`, `confirming`, `kicks`, `reactions`,
    `reinstalled_node`, `warming`.
"""
