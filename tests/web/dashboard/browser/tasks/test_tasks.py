"""What an operator does with the dashboard, with real nodes: how many clicks each task takes."""

from tests.web.dashboard.browser.tasks.person import Operator
from tests.web.dashboard.browser.tasks.small_site import SmallSite


def test_a_failed_node_and_its_first_error_take_no_click(operator: Operator) -> None:
    operator.reads("main", "Could not find class", "db01")
    assert operator.clicks == 0


def test_the_difference_of_two_releases_takes_two_clicks(operator: Operator) -> None:
    operator.follow("Releases")
    operator.follow("compare with previous")
    operator.reads("#texts", "site/manifests/lb.pp", "-  file", "+  include site::tls")
    assert operator.clicks == 2


def test_two_nodes_are_put_on_hold_and_released_with_one_confirmation_each(
    operator: Operator, site: SmallSite
) -> None:
    web = ("web01.example.com", "web02.example.com")
    operator.follow("Nodes")
    for name in web:
        operator.click(f"input[value='{name}']")
    operator.follow("Put on hold")
    operator.reads("main", "These 2 nodes, and no others", *web)
    operator.types("#message", "the rack moves")
    operator.click("button.do")
    operator.reads("main table", *web)
    assert operator.clicks == 6
    holds = [site.member(name).holds() for name in ("web01", "web02")]
    assert holds == [["the rack moves"]] * 2
    operator.follow("End these holds")
    operator.click("button.do")
    operator.reads("main table", *web)
    assert [site.member(name).holds() for name in ("web01", "web02")] == [[], []]
