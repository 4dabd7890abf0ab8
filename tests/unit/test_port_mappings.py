"""The capability "portMappings" as runtimes send it: what is taken, and what is refused with one clear error."""

from typing import Any

import pytest

from podwire.cni import portmappings
from podwire.cni.errors import CniError, ErrorCode
from podwire.model.addresses import Address, parse_address
from podwire.model.objects import HostPort, Protocol

ALL, ALL4, ALL6 = Address(b""), Address(bytes(4)), Address(bytes(16))


def mapping(**given: Any) -> dict[str, Any]:
    """One that is right, but for what is given; None: left out."""
    whole = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""} | given
    return {name: value for name, value in whole.items() if value is not None}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(None, [], id="nothing"),
        pytest.param([], [], id="an empty list"),
        pytest.param([mapping()], [HostPort(ALL, Protocol.TCP, 8080, 80)], id="of both families"),
        pytest.param([mapping(protocol="UDP")], [HostPort(ALL, Protocol.UDP, 8080, 80)], id="capital letters"),
        pytest.param([mapping(protocol="Sctp")], [HostPort(ALL, Protocol.SCTP, 8080, 80)], id="mixed letters"),
        pytest.param([mapping(protocol=None, hostIP=None)], [HostPort(ALL, Protocol.TCP, 8080, 80)], id="left out"),
        pytest.param([mapping(protocol="", hostIP=None)], [HostPort(ALL, Protocol.TCP, 8080, 80)], id="empty"),
        pytest.param([mapping(hostIP="0.0.0.0")], [HostPort(ALL4, Protocol.TCP, 8080, 80)], id="all of IPv4"),
        pytest.param([mapping(hostIP="::")], [HostPort(ALL6, Protocol.TCP, 8080, 80)], id="all of IPv6"),
        pytest.param(
            [mapping(hostIP="127.0.0.1", hostPort=65535, containerPort=1)],
            [HostPort(parse_address("127.0.0.1"), Protocol.TCP, 65535, 1)],
            id="loopback",
        ),
        pytest.param(
            [mapping(hostIP="FD00:0::1")], [HostPort(parse_address("fd00::1"), Protocol.TCP, 8080, 80)], id="IPv6"
        ),
        pytest.param(
            [{"HostPort": 53, "ContainerPort": 5353, "Protocol": "udp", "HostIP": "0.0.0.0"}],
            [HostPort(ALL4, Protocol.UDP, 53, 5353)],
            id="as containerd writes the fields",
        ),
        pytest.param([mapping(name="web")], [HostPort(ALL, Protocol.TCP, 8080, 80)], id="a field that nobody knows"),
        pytest.param(
            [mapping(hostIP="192.0.2.1"), mapping(), mapping(protocol="udp"), mapping(hostPort=8081)],
            [
                HostPort(ALL, Protocol.TCP, 8080, 80),
                HostPort(ALL, Protocol.TCP, 8081, 80),
                HostPort(ALL, Protocol.UDP, 8080, 80),
                HostPort(parse_address("192.0.2.1"), Protocol.TCP, 8080, 80),
            ],
            id="the same port at another address, by another protocol, and another one",
        ),
    ],
)
def test_what_is_taken(told: Any, expected: list[HostPort]) -> None:
    assert portmappings.parse(told) == tuple(expected)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"hostPort": 80}, ": expected a list of port mappings; found {'hostPort': 80}"),
        ([80], "[0]: expected an object with hostPort and containerPort; found 80"),
        ([None], "[0]: expected an object with hostPort and containerPort; found nothing"),
        ([mapping(hostPort=0)], "[0].hostPort: expected a number from 1 to 65535; found 0"),
        ([mapping(hostPort=65536)], "[0].hostPort: expected a number from 1 to 65535; found 65536"),
        ([mapping(hostPort=-1)], "[0].hostPort: expected a number from 1 to 65535; found -1"),
        ([mapping(hostPort="80")], "[0].hostPort: expected a number from 1 to 65535; found '80'"),
        ([mapping(hostPort=80.5)], "[0].hostPort: expected a number from 1 to 65535; found 80.5"),
        ([mapping(hostPort=True)], "[0].hostPort: expected a number from 1 to 65535; found True"),
        ([mapping(hostPort=None)], "[0].hostPort: expected a number from 1 to 65535; found nothing"),
        ([mapping(), mapping(containerPort=0)], "[1].containerPort: expected a number from 1 to 65535; found 0"),
        ([mapping(containerPort=65536)], "[0].containerPort: expected a number from 1 to 65535; found 65536"),
        ([mapping(containerPort=None)], "[0].containerPort: expected a number from 1 to 65535; found nothing"),
        ([mapping(protocol="icmp")], "[0].protocol: expected one of TCP, UDP, SCTP; found 'icmp'"),
        ([mapping(protocol="tcp ")], "[0].protocol: expected one of TCP, UDP, SCTP; found 'tcp '"),
        ([mapping(protocol=6)], "[0].protocol: expected one of TCP, UDP, SCTP; found 6"),
        ([mapping(hostIP="node")], "[0].hostIP: expected an IP address of the node, or none for all that it has"),
        ([mapping(hostIP="192.0.2.1/24")], "found '192.0.2.1/24'"),
        ([mapping(hostIP=" 192.0.2.1")], "found ' 192.0.2.1'"),
        ([mapping(hostIP=["192.0.2.1"])], "found ['192.0.2.1']"),
        ([mapping(hostIP="::1")], "[0].hostIP: expected an address that leads on to a pod"),
        ([mapping(hostIP="::1")], "(IPv6 has no route_localnet; 127.0.0.1 can be named); found '::1'"),
        ([mapping(hostIP="fe80::1")], "from IPv6's loopback and link-local addresses nothing does"),
        (
            [mapping(hostIP="::ffff:192.0.2.1")],
            "and no IPv4-mapped one; found '::ffff:192.0.2.1'",
        ),
        ([mapping(hostIP="224.0.0.1")], "that a node can have, and no multicast one; found '224.0.0.1'"),
        ([mapping(hostIP="ff02::1")], "that a node can have, and no multicast one; found 'ff02::1'"),
        ([mapping(hostIP="255.255.255.255")], "that a node can have, and no broadcast one; found '255.255.255.255'"),
        ([mapping(), mapping()], "[1]: host port 0.0.0.0:8080/TCP is in [0] already: expected each hostPort once for"),
        ([mapping(), mapping(containerPort=81)], "[1]: host port 0.0.0.0:8080/TCP is in [0] already"),
        ([mapping(hostIP="::"), mapping()], "[1]: host port [::]:8080/TCP is in [0] already"),
        ([mapping(protocol="TCP"), mapping(hostIP="0.0.0.0")], "[1]: host port 0.0.0.0:8080/TCP is in [0] already"),
        ([mapping() | {"HostPort": 81}], "[0].hostPort: expected it once"),
    ],
)
def test_what_is_refused(told: Any, text: str) -> None:
    with pytest.raises(CniError) as raised:
        portmappings.parse(told)
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert raised.value.text.startswith("network configuration: runtimeConfig.portMappings")
    assert text in raised.value.text
