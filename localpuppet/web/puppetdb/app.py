"""The API as an ASGI application: paths, requests and responses.

- Requests are parsed on the event loop, and queries are evaluated in threads.
- Only GET and POST read; nothing writes.
- Metrics of the population have the forms of PuppetDB's `/metrics/v2` (Jolokia) and `/metrics/v1`.
  There is no `pct-resource-dupes`, because nodes do not publish whole catalogs, and nothing about a
  Java virtual machine or a database. A client gets an error instead of an invented number.
- An MBean that does not exist is an error in the body, with status 200, as in Jolokia.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.strict_json import loads, loads_again
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query.compiling import COUNT
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.pql import to_array
from localpuppet.fleet.inventory.query.tree import Entity, Select
from localpuppet.web.access.rules import AccessMiddleware, AccessRefusal, AccessRule, Visitor
from localpuppet.web.puppetdb import answers, api_requests
from localpuppet.web.puppetdb.answering import Answering, AnswerKey, RequestDeadline
from localpuppet.web.puppetdb.report_rows import with_node_log

_ESCAPED = re.compile(r"!(.)")
_DOMAIN = "puppetlabs.puppetdb.population"
MBeans = Mapping[str, Mapping[str, Json]]


def population(evaluation: Evaluation) -> MBeans:
    nodes, resources = (
        loads_again(row.encode())["count"]
        for entity in (Entity.INVENTORY, Entity.RESOURCES)
        for row in evaluation.stream(Select(entity=entity, columns=(COUNT,))).rows
    )
    values: dict[str, Json] = {
        "num-nodes": nodes,
        "num-active-nodes": nodes,
        "num-inactive-nodes": 0,
        "num-resources": resources,
        "avg-resources-per-node": resources / nodes if nodes else 0,
    }
    return {f"{_DOMAIN}:name={name}": {"Value": value} for name, value in values.items()}


def read_mbeans(mbeans: MBeans, path: str, now: float) -> dict[str, Json]:
    """Return the answer to `/metrics/v2/read/PATH`; `!` escapes a character in the MBean's name."""
    name, _, attribute = _ESCAPED.sub(r"\1", path).partition("/")
    request: dict[str, Json] = {"mbean": name, "type": "read"}
    attributes = mbeans.get(name)
    if attribute:
        request["attribute"] = attribute
    if attributes is None or (attribute and attribute not in attributes):
        kind = "javax.management.InstanceNotFoundException"
        error = f"{kind} : {name}"
        return {"request": request, "error_type": kind, "error": error, "status": 404}
    value: Json = attributes[attribute] if attribute else dict(attributes)
    return {"request": request, "value": value, "timestamp": int(now), "status": 200}


def list_mbeans(mbeans: MBeans, now: float) -> dict[str, Json]:
    """Return the answer to `/metrics/v2/list`: domain → properties → attributes."""
    domains: dict[str, Json] = {}
    for name, attributes in mbeans.items():
        domain, _, properties = name.partition(":")
        described: Json = {
            attribute: {"rw": False, "type": "java.lang.Object"} for attribute in attributes
        }
        inner = domains.setdefault(domain, {})
        if isinstance(inner, dict):
            inner[properties] = {"attr": described}
    request: Json = {"type": "list"}
    return {"request": request, "value": domains, "timestamp": int(now), "status": 200}


# The version of PuppetDB whose queries the API has; clients compare it with their minimum.
VERSION = "8.8.1"
_LATEST = {"newer": False, "version": VERSION, "link": None}
_STATUS = {
    "service_version": VERSION,
    "service_status_version": 1,
    "detail_level": "info",
    "state": "running",
    "status": {
        "maintenance_mode?": False,
        "queue_depth": 0,
        "read_db_up?": True,
        "write_db_up?": True,
    },
    "active_alerts": [],
}
QUERY = "/pdb/query/"
CHUNK = 256 * 1024
# Seconds for the log of a node in the answer to a query.
LOG_PATIENCE = 3.0
_NO_METHOD = "PuppetDB queries must be made via GET/POST"  # as PuppetDB says
_READ_ONLY = (
    "Permission denied: localpuppet serves queries only. Nodes publish their facts and reports"
    " themselves ('localpuppet inventory forget NODE' removes one)."
)


class ApiContext(Value):
    """The data for the responses."""

    answering: Answering
    clock: Clock
    client: Callable[[Visitor], str]
    # Returns a part of the report with a hash, `logs` or `metrics`, and `None` if no report has it.
    # Raises `UnavailableError` if its node cannot be reached.
    details: Callable[[str, str], Awaitable[Json]] | None = None
    metrics: Callable[[], MBeans] = dict
    body_patience: float = api_requests.BODY_PATIENCE
    parse_pql: Callable[[str], list[Json]] = to_array


def application(parts: ApiContext, rule: AccessRule) -> ASGIApp:
    api, every = _Api(parts), ["GET", "POST"]
    shown = Starlette(
        routes=[
            _constant("/pdb/meta/v1/version", {"version": VERSION}),
            _constant("/pdb/meta/v1/version/latest", _LATEST),
            Route("/pdb/meta/v1/server-time", api.server_time),
            Route(QUERY + "{path:path}", api.query, methods=every),
            Route("/pdb/cmd/v1", api.command, methods=every),
            Route("/metrics/v1/mbeans", api.metrics_v1),
            Route("/metrics/v1/mbeans/{name:path}", api.metrics_v1),
            Route("/metrics/v2/list", api.metrics_list),
            Route("/metrics/v2/read/{name:path}", api.metrics_read),
            _constant("/status/v1/services", {"puppetdb-status": _STATUS}),
            _constant("/status/v1/services/puppetdb-status", _STATUS),
        ],
        exception_handlers={LocalpuppetError: _failed, HTTPException: _missing},
    )
    shown.router.redirect_slashes = False  # as in PuppetDB
    return AccessMiddleware(shown, rule.refusal, _rejected)


def _constant(path: str, value: object) -> Route:
    """Return a route whose answer is always the same."""

    async def respond(_: Request) -> Response:
        return answers.json_response(value)

    return Route(path, respond)


def _rejected(refusal: AccessRefusal) -> Response:
    if refusal.code == 405:
        return answers.refused(400, _NO_METHOD)
    return answers.refused(refusal.code, f"Permission denied: {refusal.what} {refusal.hint}")


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, LocalpuppetError)  # noqa: S101 - the handler is for these
    return answers.response_of(error)


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler is for these
    if error.status_code == 405:
        return answers.refused(400, _NO_METHOD)
    text = _unknown(request) if error.status_code == 404 else error.detail
    return answers.refused(error.status_code, text)


def _unknown(request: Request) -> str:
    path = one_line(request.url.path)[:200]
    return f"Not Found: {path} is no path of PuppetDB's API that localpuppet answers"


class _Api:
    def __init__(self, parts: ApiContext) -> None:
        self._parts = parts
        self._reading = api_requests.RequestReading(parts.body_patience)

    async def server_time(self, _: Request) -> Response:
        return answers.json_response({"server_time": show_epoch(self._now())})

    async def command(self, _: Request) -> Response:
        return answers.refused(403, _READ_ONLY)

    async def metrics_v1(self, request: Request) -> Response:
        mbeans, name = await self._mbeans(), request.path_params.get("name")
        if name is None:
            return answers.json_response({mbean: f"/mbeans/{mbean}" for mbean in mbeans})
        return (
            answers.json_response(mbeans[name])
            if name in mbeans
            else answers.refused(404, "No such mbean")
        )

    async def metrics_list(self, _: Request) -> Response:
        return answers.json_response(list_mbeans(await self._mbeans(), self._now()))

    async def metrics_read(self, request: Request) -> Response:
        name = request.path_params["name"]
        return answers.json_response(read_mbeans(await self._mbeans(), name, self._now()))

    async def _mbeans(self) -> MBeans:
        return await asyncio.to_thread(self._parts.metrics)

    def _now(self) -> float:
        return self._parts.clock.now().timestamp()

    async def query(self, request: Request) -> Response:
        segments = api_requests.segments_below(QUERY, request)
        if segments[:1] in (["v1"], ["v2"], ["v3"]):
            return answers.refused(404, f"The {segments[0]} API has been retired; please use v4")
        endpoint = api_requests.endpoint_of(segments[1:]) if segments[:1] == ["v4"] else None
        if endpoint is None:
            return answers.refused(404, _unknown(request))
        parameters = await self._reading.parameters(request, endpoint)
        if endpoint.detail:
            return await self._detail(endpoint, parameters)
        if parameters.ast_only:
            client = self._parts.client(Visitor.of(request.scope))
            async with self._parts.answering.turns.turn(client):
                parse = partial(_array, endpoint, parameters, self._parts.parse_pql)
                return answers.json_response(await asyncio.to_thread(parse))
        return await self._answer(request, segments, endpoint, parameters)

    def _question(
        self,
        endpoint: api_requests.ApiEndpoint,
        parameters: api_requests.RequestParameters,
        loop: asyncio.AbstractEventLoop,
    ) -> api_requests.Question:
        """Return the question of a request; a single report of a node has the node's log."""
        question, details = api_requests.question_of(endpoint, parameters), self._parts.details
        if details is None or not question.is_of_one_node:
            return question

        def read(report: str) -> Json:
            # The loop may end first: the thread must not wait for it without end.
            reading = asyncio.wait_for(details(report, "logs"), LOG_PATIENCE)
            return asyncio.run_coroutine_threadsafe(reading, loop).result(LOG_PATIENCE + 1.0)

        return replace(question, shape=partial(with_node_log, read=read))

    async def _detail(
        self, endpoint: api_requests.ApiEndpoint, parameters: api_requests.RequestParameters
    ) -> Response:
        """Return a part of a report that only its node has."""
        read, report = self._parts.details, endpoint.parents[-1].value
        deadline = self._parts.answering.deadline(parameters.timeout)
        try:
            async with asyncio.timeout(deadline.left):
                value = None if read is None else await read(report, endpoint.detail)
        except TimeoutError as error:
            raise deadline.error() from error
        if value is None:
            raise answers.AbsentError(f"No information is known about report {report}")
        return answers.json_response(value)

    async def _answer(
        self,
        request: Request,
        segments: list[str],
        endpoint: api_requests.ApiEndpoint,
        parameters: api_requests.RequestParameters,
    ) -> Response:
        answering = self._parts.answering
        client = self._parts.client(Visitor.of(request.scope))
        deadline = answering.deadline(parameters.timeout)
        gzip = "gzip" in api_requests.listed(request.headers.get("accept-encoding", ""))
        loop = asyncio.get_running_loop()
        question = partial(self._question, endpoint, parameters, loop)
        key = AnswerKey(
            client=client,
            question=parameters.digest(segments),
            form=answers.BodyForm(pretty=parameters.pretty, gzip=gzip),
        )
        working = asyncio.create_task(answering.answer(question, key, deadline))
        answer = await _while_there(request, working, deadline)
        headers = {
            "content-type": "application/json; charset=utf-8",
            "content-length": str(answer.body.size),
            "vary": "accept-encoding",
            "x-last-updated": show_epoch(self._now() - answer.age),
        }
        if answer.compressed:
            headers["content-encoding"] = "gzip"
        if answer.total is not None:
            headers["x-records"] = str(answer.total)
        if answer.body.is_file:
            return _FileResponse(answer, headers)
        try:
            return Response(answer.body.read(0, answer.body.size), headers=headers)
        finally:
            answer.body.close()


class _FileResponse(StreamingResponse):
    """Sends an answer in a file in parts, and drops it afterwards, also if the client leaves."""

    def __init__(self, answer: answers.WrittenAnswer, headers: dict[str, str]) -> None:
        super().__init__(_parts(answer.body), headers=headers)
        self._written = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._written.body.close()


async def _parts(body: answers.AnswerBody) -> AsyncIterator[bytes]:
    start = 0
    while start < body.size:
        data = await asyncio.to_thread(body.read, start, CHUNK)
        start += len(data)
        yield data


async def _while_there(
    request: Request, working: "asyncio.Task[answers.WrittenAnswer]", deadline: RequestDeadline
) -> answers.WrittenAnswer:
    """Return the result of a query; if the client leaves, end the query."""
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            deadline.cancelled = True
        return await working
    finally:
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _array(
    endpoint: api_requests.ApiEndpoint,
    parameters: api_requests.RequestParameters,
    parse_pql: Callable[[str], list[Json]],
) -> Json:
    """Return the query of a request in AST form; a large one takes some time."""
    api_requests.question_of(endpoint, parameters)
    query = parameters.query["query"]
    if not isinstance(query, str):
        return query
    if query.lstrip().startswith("["):
        array: Json = loads(query)
        return array
    return parse_pql(query)
