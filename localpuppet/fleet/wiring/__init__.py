"""From settings to a fleet node: its bus, its identity, its agent.

acts: `agent_child`, `agent_run_side`, `agent_service`, `confirmations`, `confirming`, `exports`,
    `fleet`, `identity`, `inventory`, `kicks`, `neighbours`, `publishing`, `puppet_calls`,
    `puppet_environment`, `reactions`, `reinstalled_node`, `run_async`, `settings`, `warming`.
"""
