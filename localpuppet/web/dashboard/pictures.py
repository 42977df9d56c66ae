"""A picture of ours as an answer: SVG whose only style is the one that we wrote."""

import base64
import hashlib

from starlette.responses import Response


def picture(svg: str) -> Response:
    """Return an SVG document as an answer.

    Its policy allows the one style sheet in it, by its digest, and nothing else: opened by itself
    it runs no script, whatever the names in it are.

    Args:
        svg: As `orchestrator.svg_parts.document` makes it: the style first, then text.
    """
    style = svg.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; sandbox; frame-ancestors 'none'"
    return Response(svg, media_type="image/svg+xml", headers={"content-security-policy": policy})
