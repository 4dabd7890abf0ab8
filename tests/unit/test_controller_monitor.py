"""What the controller tells of itself over TCP."""

from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from podwire.cli.client import WRONG_USAGE, Failed
from podwire.cli.main import controller
from podwire.clustercontroller.metrics import MOST, Seen, families
from podwire.clustercontroller.monitor import serve
from podwire.loadbalancer.allocation import Grant
from podwire.loadbalancer.checks import Problem
from podwire.loadbalancer.usage import Usage
from podwire.model.addresses import IPV4, IPV6, parse_address
from podwire.model.announcements import BGPPeerKey
from podwire.model.balancers import AddressPoolKey
from podwire.model.objects import ServiceKey

A = parse_address("192.0.2.1")
SEEN = Seen(
    "0.1.0",
    True,
    {"a": {IPV4: Usage(9, 2, 7), IPV6: Usage(1 << 96, 1, (1 << 96) - 1)}},
    {
        ServiceKey("shop", "web"): Grant((A,), "a"),
        ServiceKey("shop", "old"): Grant((A,), stale=((A, "it is in no pool"),)),
        ServiceKey("shop", "half"): Grant((A,), "a", "no IPv6 address"),
        ServiceKey("shop", "none"): Grant(why="there is no AddressPool"),
        ServiceKey("shop", "more"): Grant(why="there is no AddressPool"),
    },
    (
        Problem(BGPPeerKey("p"), "f", "SecretMissing", "m"),
        Problem(BGPPeerKey("q"), "f", "SecretMissing", "m"),
        Problem(AddressPoolKey("a"), "f", "Overlap", "m"),
    ),
    11,
    3,
)


def samples(text: str) -> dict[str, float]:
    return {
        " ".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, f"http://127.0.0.1:{port}{path}") as got:
        return got.status, await got.text()


async def test_health_and_metrics_are_told_and_nothing_else() -> None:
    why = ""
    runner = await serve((parse_address("127.0.0.1"), 0), lambda: why, lambda: SEEN)
    try:
        port: Any = runner.addresses[0][1]
        assert await get(port, "/healthz") == (200, "ok\n")
        why = "the lease was not renewed in time"
        assert await get(port, "/healthz") == (503, "the lease was not renewed in time\n")
        status, text = await get(port, "/metrics")
        assert status == 200
        told = samples(text)
        assert told.pop("process_open_fds") > 0
        assert {name: it for name, it in told.items() if name.startswith("podwire_")} == {
            "podwire_build_info 0.1.0": 1,
            "podwire_controller_lease_held": 1,
            "podwire_address_pool_addresses IPv4 a total": 9,
            "podwire_address_pool_addresses IPv4 a used": 2,
            "podwire_address_pool_addresses IPv4 a free": 7,
            "podwire_address_pool_addresses IPv6 a total": MOST,
            "podwire_address_pool_addresses IPv6 a used": 1,
            "podwire_address_pool_addresses IPv6 a free": MOST,
            "podwire_load_balancer_services Assigned": 1,
            "podwire_load_balancer_services Stale": 1,
            "podwire_load_balancer_services Incomplete": 1,
            "podwire_load_balancer_services NoAddress": 2,
            "podwire_configuration_problems bgppeer SecretMissing": 2,
            "podwire_configuration_problems addresspool Overlap": 1,
            "podwire_controller_writes_total": 11,
            "podwire_controller_api_errors_total": 3,
        }
        assert (await get(port, "/status"))[0] == 404
        assert (await get(port, "/metrics", "POST"))[0] == 405
    finally:
        await runner.cleanup()


async def test_a_place_that_is_taken_is_named() -> None:
    runner = await serve((parse_address("127.0.0.1"), 0), str, lambda: SEEN)
    try:
        port = runner.addresses[0][1]
        with pytest.raises(OSError, match=f"--metrics-listen 127.0.0.1:{port}: Address already in use"):
            await serve((parse_address("127.0.0.1"), port), str, lambda: SEEN)
    finally:
        await runner.cleanup()


def test_every_family_says_what_it_is() -> None:
    assert all(it.documentation.endswith(".") for it in families(SEEN))


def test_a_wrong_place_is_refused_with_the_right_form() -> None:
    with pytest.raises(Failed, match=r"^--metrics-listen: 'here' is not IP:PORT: expected such as") as failed:
        controller(metrics_listen="here")
    assert failed.value.code == WRONG_USAGE
