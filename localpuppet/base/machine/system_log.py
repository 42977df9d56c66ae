"""Write to the system log when the state directory cannot take an error."""

import syslog


def write_system_log(text: str) -> None:
    """Write an error to the system log; without a running log, the error is dropped.

    Args:
        text: One line.
    """
    syslog.openlog("localpuppet", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, text)
