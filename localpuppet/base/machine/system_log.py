"""The system log: the last place for what the state directory cannot take."""

import syslog


def write_system_log(text: str) -> None:
    """Write an error of localpuppet to the system log; without a running log it is dropped.

    Args:
        text: One line.
    """
    syslog.openlog("localpuppet", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, text)
