"""From settings to a fleet node: its bus, its identity, its agent.

acts: `agent_service`, `confirmations`, `exports`, `fleet`, `history`, `inventory`, `neighbours`,
  `publishing`, `puppet_calls`, `puppet_environment`, `settings_cache`.
private: `agent_child`, `agent_run_side`, `kicks`, `reinstalled_node`.
"""
