"""Notifications: what goes wrong in the fleet becomes incidents, which are sent to channels.

    notifier (SELECTs) -> routing (decides) -> notice_ledger (durable) -> notifier -> channels

acts: `channels`, `notifier`, `notice_ledger`.
decides: `routing`, `wording`.
"""
