"""What an operator does with the dashboard, with real nodes: how many clicks each task takes."""

from tests.web.dashboard.browser.tasks.person import Operator


def test_a_failed_node_and_its_first_error_take_no_click(operator: Operator) -> None:
    operator.reads("main", "Could not find class", "db01")
    assert operator.clicks == 0


def test_the_difference_of_two_releases_takes_two_clicks(operator: Operator) -> None:
    operator.follow("Releases")
    operator.follow("compare with previous")
    operator.reads("#texts", "site/manifests/lb.pp", "-release = r1", "+release = r2")
    assert operator.clicks == 2
