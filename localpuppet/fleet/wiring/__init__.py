"""From settings to a node of a fleet: its bus, its identity, its agent.

acts: `agent_child`, `agent_run_side`, `agent_service`, `confirmations`, `confirming`, `exports`,
    `fleet`, `identity`, `inventory`, `kicks`, `made_anew`, `neighbours`, `owned_bus`,
    `puppet_calls`, `puppet_environment`, `reactions`, `run_async`, `settings`, `telling`,
    `warming`.
"""
