"""The https client, made when an input is fetched."""

from localpuppet import config


class LazyHttps:
    """The https client; ssl and urllib cost 40 ms that a local input must not pay."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings

    def get(self, url: str, *, limit: int) -> bytes:
        """Return what is at a URL; see `enc.Fetch`."""
        from localpuppet.adapters.https import Https

        client = Https(ca=self._settings.https_ca, timeout=self._settings.https_timeout)
        return client.get(url, limit=limit)
