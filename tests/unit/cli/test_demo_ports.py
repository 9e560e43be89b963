"""Ports at which a server can be found again after it was stopped."""

import socket
from contextlib import closing

from ister.cli.demo import broker as ports
from ister.cli.demo.broker import free_ports, steady_ports


def outgoing_port():
    """Return the port that the machine gives to a connection's own side."""
    server = socket.create_server(("127.0.0.1", 0))
    with closing(server), closing(socket.create_connection(server.getsockname())) as connection:
        return connection.getsockname()[1]


def test_no_connection_is_given_a_port_that_is_meant_for_a_server():
    assert len(steady_ports()) > 1000
    assert not {outgoing_port() for _ in range(200)} & set(steady_ports())


def test_free_ports_differ_and_a_taken_one_is_not_among_them():
    among = range(steady_ports()[0], steady_ports()[0] + 200)
    found = free_ports(20, among)
    assert len(set(found)) == 20
    with socket.create_server(("127.0.0.1", found[0])):
        again = free_ports(len(among) - 1, among)
        assert found[0] not in again


def test_a_machine_that_tells_nothing_or_gives_all_its_ports_has_some_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "none")
    assert steady_ports() == range(10_000, 32_768)
    (tmp_path / "none").write_text("1024 65000\n")
    assert steady_ports() == range(10_000, 32_768)
    (tmp_path / "none").write_text("40000 65000\n")
    assert steady_ports() == range(10_000, 40_000)
