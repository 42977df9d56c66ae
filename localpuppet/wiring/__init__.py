"""The only place that picks adapters and hands parts to each other.

acts: `agent_child`, `agent_run_side`, `agent_service`, `confirming`, `evaluating`, `exports`,
    `fleet`, `forge`, `identity`, `instance`, `inventory`, `kicks`, `made_anew`, `makers`, `node`,
    `owned_bus`, `puppet_calls`, `puppet_environment`, `reactions`, `releases`, `rollout`,
    `rollout_heads`, `run`, `run_async`, `telling`, `warming`, `web`, `web_actions`, `web_doors`.
"""
