"""The https client, made when an input is fetched."""

from localpuppet.settings import node as node_settings


class LazyHttps:
    """The https client; ssl and urllib cost 40 ms that a local input must not pay."""

    def __init__(self, settings: node_settings.Settings) -> None:
        self._settings = settings

    def get(self, url: str, *, limit: int) -> bytes:
        """Return what is at a URL; see `enc.input.Fetch`."""
        from localpuppet.enc.https import Https

        client = Https(ca=self._settings.https_ca, timeout=self._settings.https_timeout)
        return client.get(url, limit=limit)
