import socket

import pytest

from mindswap.errors import LaunchError
from mindswap.training.launch.msrun import check_port


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def used_port(request):
    with socket.create_server((request.param, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_named_with_a_free_one(used_port):
    with pytest.raises(LaunchError, match=f"MASTER_PORT {used_port} of 127.0.0.1 is in use\n.* is free") as error:
        check_port("127.0.0.1", used_port)
    check_port("127.0.0.1", int(str(error.value).split("fix:")[1].split()[0]))


def test_the_free_port_is_given_as_it_is_typed(used_port):
    with pytest.raises(LaunchError, match=r"fix:     add --master_port=(\d+) \(ss -ltnp") as error:
        check_port("127.0.0.1", used_port, fix="add --master_port=")
    assert f"MASTER_PORT {used_port}" in str(error.value)


def test_a_port_is_free_again_at_once(used_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = server.accept()
        connection.close()  # the server's side closes first and waits (TIME_WAIT)
        client.close()
    check_port("127.0.0.1", port)


def test_ports_of_other_machines_are_not_checked(used_port):
    check_port("203.0.113.1", used_port)  # TEST-NET-3: never an address of this machine


def test_an_unknown_host():
    with pytest.raises(LaunchError, match="MASTER_ADDR is 'no.such.host.invalid'"):
        check_port("no.such.host.invalid", 8118)
