"""The messages that the documentation shows are those that channels send."""

import json
import re
from pathlib import Path

from localpuppet.web.notify.channels import Channel, CommitStatus, StatusSender, StatusState
from localpuppet.web.notify.routing import (
    ChannelSettings,
    ChannelType,
    Condition,
    Incident,
    IncidentKind,
    Route,
)
from localpuppet.web.notify.wording import Event, IncidentText, Notice
from tests.rigs.node import REPOSITORY
from tests.web.notify.make import a_webhook
from tests.web.notify.receivers import Receiver, secret_file
from tests.web.notify.test_channels import a_chat, a_mailbox, mail_server

AT = 1_795_857_240.0
DASHBOARD = "https://fleet.example.com"


def shown(page: str, heading: str, language: str) -> list[str]:
    """Return the code blocks of a language below a heading."""
    text = (REPOSITORY / "docs" / page).read_text()
    (part,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


def a_failure() -> Notice:
    condition = Condition(
        key="failed:1f0c6a52:shop/tags/r7",
        kind=IncidentKind.FAILED,
        release="shop/tags/r7",
        detail="Could not find class ::nginx (site.pp:3)",
        nodes=tuple(f"web0{number}.example.com" for number in range(1, 8)),
        page="/nodes?failure_cause=1f0c6a52",
    )
    incident = Incident(condition=condition, seen_at=AT - 120, opened_at=AT)
    route = Route(name="x", channel=ChannelSettings(type=ChannelType.WEBHOOK))
    text = IncidentText.of(incident, route, DASHBOARD)
    name = "msg_5c1b0c4a7f5b4f0e9d5e0a3b8c2d1e6f"
    return Notice(
        id=name, event=Event.OPENED, fleet="production", at=AT, total=1, incidents=(text,)
    )


def test_the_picture_of_a_webhook_is_its_body(tmp_path: Path) -> None:
    with Receiver() as receiver:
        Channel(a_webhook(tmp_path, receiver.url), tmp_path).send(a_failure(), now=AT)
    (picture,) = shown("reference/notifications.md", "JSON of a webhook", "json")
    assert json.loads(picture) == receiver.received[0].json


def test_the_picture_of_a_chat_is_its_text(tmp_path: Path) -> None:
    with Receiver() as receiver:
        a_chat(tmp_path, receiver.url).send(a_failure(), now=AT)
    (picture,) = shown("how-to/notify-people.md", "Set up a chat", "text")
    assert picture.rstrip("\n") == receiver.received[0].json["text"]


def test_the_picture_of_a_mail_is_its_text(tmp_path: Path) -> None:
    with mail_server() as (box, port):
        a_mailbox(tmp_path, port).send(a_failure(), now=AT)
    (mail,) = box.mails
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    heads = "".join(f"{name}: {mail[name]}\n" for name in ("Subject", "From", "To"))
    (picture,) = shown("how-to/notify-people.md", "Send mail", "text")
    assert picture == f"{heads}\n{body.decode()}".replace("\r\n", "\n")


def test_the_picture_of_an_alert_is_what_alertmanager_gets(tmp_path: Path) -> None:
    with Receiver() as receiver:
        file = secret_file(tmp_path, "url", receiver.url)
        settings = ChannelSettings(type=ChannelType.ALERTMANAGER, url_file=file)
        Channel(settings, tmp_path).alert(a_failure().incidents, fleet="production", now=AT)
    (picture,) = shown("how-to/notify-people.md", "Use Alertmanager", "json")
    assert [json.loads(picture)] == receiver.received[0].json


def test_the_picture_of_a_status_is_its_body(tmp_path: Path) -> None:
    status = CommitStatus(
        commit="4" * 40,
        release="shop/tags/r7",
        state=StatusState.PENDING,
        description="on 40 of 1,204 nodes",
        on=40,
    )
    with Receiver(lambda _: (201, {})) as receiver:
        settings = ChannelSettings(
            type=ChannelType.GITHUB,
            repository="example/puppet-shop",
            api_url=receiver.url,
            token_file=secret_file(tmp_path, "token", "TOKEN"),
        )
        StatusSender(Channel(settings, tmp_path), "production", DASHBOARD).send(status)
    (picture,) = shown("reference/notifications.md", "Statuses of commits", "json")
    assert json.loads(picture) == receiver.received[0].json
