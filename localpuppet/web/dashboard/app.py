"""The dashboard as an ASGI application: routes, and error responses."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from localpuppet.base.errors import LocalpuppetError
from localpuppet.web.access.loopback import ENTER
from localpuppet.web.access.middleware import AccessMiddleware
from localpuppet.web.dashboard.difference_views import PATH as DIFFERENCE
from localpuppet.web.dashboard.list_query import LISTS
from localpuppet.web.dashboard.pages import Pages
from localpuppet.web.dashboard.pictures import style_sheet
from localpuppet.web.dashboard.template_renderer import HERE
from localpuppet.web.dashboard.view_context import ViewContext


def application(parts: ViewContext) -> ASGIApp:
    """Return the application.

    Args:
        parts: The data for its views.
    """
    pages = Pages(parts)

    def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, LocalpuppetError):
            return pages.problem(error)
        return pages.missing()

    node = "/nodes/{node}"
    entrance = [] if pages.entering is None else [Route(ENTER, pages.entering.enter)]
    acts = []
    if pages.acting is not None and pages.acting_on_rollouts is not None:
        acting, both = pages.acting, ["GET", "POST"]
        acts = [
            Route("/nodes/do/{action}", acting.nodes, methods=both),
            Route("/rollouts/do/start", pages.acting_on_rollouts.start, methods=both),
            Route("/rollouts/{rollout}/do/{action}", pages.acting_on_rollouts.act, methods=both),
        ]
    shown = Starlette(
        routes=[
            Route("/", pages.overview),
            Route(node, pages.node),
            Route(node + "/runs/{run}", pages.run),
            *acts,
            Route("/rollouts/{rollout}.json", pages.rollout_file),
            Route("/rollouts/{rollout}", pages.rollout),
            Route(DIFFERENCE, pages.differing.page),
            Route(DIFFERENCE + ".{form}", pages.differing.file),
            Route("/find", pages.finding.page),
            Route("/find.json", pages.finding.suggestions),
            Route("/plan", pages.diagrams.plan),
            Route("/plan.{form}", pages.diagrams.plan_file),
            Route("/kicks", pages.diagrams.kicks),
            Route("/kicks.{form}", pages.diagrams.kicks_file),
            Route("/diagram.css", style_sheet),
            Route("/map", pages.history.map),
            Route("/bus", pages.bus),
            Route("/events", pages.events),
            *entrance,
            *(Route(path, pages.lists.page) for path in LISTS),
            *(Route(path + ".{form}", pages.lists.file) for path in LISTS),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        exception_handlers={LocalpuppetError: refused, HTTPException: refused},
    )
    return AccessMiddleware(shown, parts.door, pages.refusal)
