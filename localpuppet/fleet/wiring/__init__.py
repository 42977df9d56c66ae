"""From settings to a fleet node: its bus, its identity, its agent.

acts: `agent_service`, `confirmations`, `exports`, `fleet`, `history`, `inventory`, `neighbours`,
  `publishing`, `puppet_calls`, `settings_cache`.
private: `agent_child`, `agent_run_side`, `reinstalled_node`.
"""
