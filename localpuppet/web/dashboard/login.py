"""The view behind the link, which exchanges the link's secret for a cookie."""

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.web.access.loopback import LoopbackDoor
from localpuppet.web.dashboard.template_renderer import TemplateRenderer


class LoginView:
    """The view behind the link.

    Args:
        door: Knows the link and the sessions.
        showing: Shows templates.
    """

    def __init__(self, door: LoopbackDoor, showing: TemplateRenderer) -> None:
        self._door = door
        self._showing = showing

    async def enter(self, request: Request) -> Response:
        """Exchange the secret of the link for a cookie."""
        cookie = self._door.sessions.enter(request.query_params.get("key", ""))
        if cookie is None:
            return self._showing.problem(
                403,
                "This link is invalid or was used before.",
                "It works once, for ten minutes. For a new link, start 'localpuppet web' again.",
            )
        # Not a redirect: a browser that comes from elsewhere would not send a strict cookie then.
        response = self._showing.page("entered.html")
        response.set_cookie(self._door.cookie, cookie, httponly=True, samesite="strict")
        return response
