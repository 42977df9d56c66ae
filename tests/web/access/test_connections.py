"""The limits of connections."""

from localpuppet.web.access.tls import ConnectionTable


def test_an_address_with_many_connections_keeps_no_other_address_out() -> None:
    crowd = ConnectionTable(most=5, of_one=2)
    inside = [crowd.enter("192.0.2.1") for _ in range(3)]
    assert inside == ["192.0.2.1", "192.0.2.1", None]
    assert crowd.enter("192.0.2.2")


def test_the_total_number_of_connections_is_limited() -> None:
    crowd = ConnectionTable(most=2, of_one=2)
    first = crowd.enter("192.0.2.1")
    assert first
    assert crowd.enter("192.0.2.2")
    assert crowd.enter("192.0.2.3") is None
    crowd.leave(first)
    assert crowd.enter("192.0.2.3")


def test_an_ipv6_network_counts_as_a_single_address() -> None:
    crowd = ConnectionTable(most=9, of_one=1)
    assert crowd.enter("2001:db8::1")
    assert crowd.enter("2001:db8::2:2") is None
    assert crowd.enter("2001:db8:0:1::1")
    assert crowd.enter("fe80::1%eth0")


def test_an_address_of_ipv4_within_ipv6_is_that_address() -> None:
    crowd = ConnectionTable(most=9, of_one=1)
    assert crowd.enter("::ffff:192.0.2.1") == "192.0.2.1"
    assert crowd.enter("::ffff:192.0.2.2")
