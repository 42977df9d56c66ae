"""Notifications: what goes wrong in the fleet becomes incidents, which are sent to channels.

    notifier (SELECTs) -> incidents (decides) -> notice_ledger (durable) -> notifier -> channels

acts: `channels`, `commit_status`, `notifier`, `notice_ledger`.
decides: `routing`, `wording`.
private: `incidents`.
"""
