"""Converts the origin of a Puppetfile module to a URL that a manifest accepts."""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.git.names import GitUrl

_USER = re.compile(r"(https?://)[^/@:]+@")


def git_url(text: str, *, allow_file: bool) -> tuple[GitUrl, str]:
    """Return the URL of a repository, and a note about what was changed in it.

    Raises:
        InvalidInputError: No URL of a manifest can express it.
    """
    note = ""
    if text.startswith("git://"):
        text, note = f"https://{text.removeprefix('git://')}", "git:// became https://"
    elif text.startswith("http://"):
        text, note = f"https://{text.removeprefix('http://')}", "http:// became https://"
    elif text.startswith("git+ssh://"):
        text, note = text.removeprefix("git+"), "git+ssh:// became ssh://"
    if _USER.match(text):
        text, note = _USER.sub(r"\1", text), "the user in the URL is left to git's configuration"
    try:
        return GitUrl.parse(text.rstrip("/"), where="", allow_file=allow_file), note
    except InvalidInputError as error:
        if "credentials" in str(error):
            raise InvalidInputError("its URL holds a password", hint="use ssh keys") from error
        raise InvalidInputError(
            "its repository is not an https or ssh URL",
            hint="use a URL that nodes reach; 'allow_file_urls: true' allows file:///",
        ) from error
