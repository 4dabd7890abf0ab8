"""The capability "bandwidth", and what becomes of a rate in the kernel."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni import bandwidth
from podwire.cni.errors import CniError, ErrorCode
from podwire.controller.difference import Change
from podwire.dataplane.linux import shaping as messages
from podwire.dataplane.messages import attrs
from podwire.model.network import IngressKey, Limit
from podwire.model.objects import NO_BANDWIDTH, Bandwidth, Rate
from podwire.pods import shaping

WHOLE = {"ingressRate": 1000, "ingressBurst": 2000, "egressRate": 3000, "egressBurst": 4000}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(None, NO_BANDWIDTH, id="nothing"),
        pytest.param({}, NO_BANDWIDTH, id="nothing in it"),
        pytest.param(dict.fromkeys(WHOLE, 0), NO_BANDWIDTH, id="no limits"),
        pytest.param(dict.fromkeys(WHOLE), NO_BANDWIDTH, id="nulls"),
        pytest.param(WHOLE, Bandwidth(Rate(1000, 2000), Rate(3000, 4000)), id="both"),
        pytest.param(
            {"IngressRate": 10**6, "IngressBurst": 0xFFFF_FFFF, "EgressRate": 0, "EgressBurst": 0},
            Bandwidth(ingress=Rate(10**6, 0xFFFF_FFFF)),
            id="as containerd writes it",
        ),
        pytest.param({"egressRate": 8, "egressBurst": 1, "later": "x"}, Bandwidth(egress=Rate(8, 1)), id="one unknown"),
    ],
)
def test_what_is_taken(told: Any, expected: Bandwidth) -> None:
    assert bandwidth.parse(told) == expected


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([1], "bandwidth: expected an object with ingressRate, ingressBurst, egressRate and egressBurst; found [1]"),
        (
            WHOLE | {"ingressRate": -1},
            ".ingressRate: expected a number of bits from 0 to 9223372036854775807; found -1",
        ),
        (WHOLE | {"ingressRate": "1M"}, ".ingressRate: expected a number of bits from 0 to 9223372036854775807; found"),
        (WHOLE | {"egressBurst": 1.5}, ".egressBurst: expected a number of bits"),
        (WHOLE | {"egressBurst": 1 << 63}, ".egressBurst: expected a number of bits"),
        (WHOLE | {"egressRate": True}, ".egressRate: expected a number of bits"),
        (WHOLE | {"ingressBurst": 0}, ".ingressBurst: expected one beside ingressRate; found 0"),
        (WHOLE | {"egressRate": 0}, ".egressRate: expected one beside egressBurst; found 0"),
        (WHOLE | {"egressRate": 7}, ".egressRate: expected at least 8 bits per second; found 7"),
        (WHOLE | {"IngressRate": 1000}, ".ingressRate: expected it once"),
    ],
)
def test_what_is_refused(told: Any, text: str) -> None:
    with pytest.raises(CniError) as raised:
        bandwidth.parse(told)
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert raised.value.text.startswith("network configuration: runtimeConfig.bandwidth")
    assert text in raised.value.text


rates = st.builds(Rate, st.integers(8, 1 << 50), st.integers(1, bandwidth.MOST))


@given(rates, st.sampled_from((1280, 1500, 65535)))
def test_a_bucket_holds_a_packet_and_the_kernels_numbers_end_nowhere(it: Rate, mtu: int) -> None:
    limit = shaping.limit(it, 7, mtu)
    assert limit.rate == it.rate // 8
    assert 0 < limit.fill < 1 << 32
    assert shaping.LEAST_QUEUE <= limit.queue < 1 << 32
    filled = limit.fill * 64 * limit.rate // 10**9
    assert filled >= mtu + shaping.ETHERNET or limit.fill == (1 << 32) - 1
    assert filled >= min(it.burst // 8, 270 * limit.rate) - 1


@given(rates)
def test_what_the_kernel_holds_makes_nearly_the_same_again(it: Rate) -> None:
    """After a store was lost: the rate whole, the burst but for a bit's time."""
    limit = shaping.limit(it, 7, 1500)
    again = shaping.limit(shaping.rate_of(limit), 7, 1500)
    assert (again.rate, again.queue) == (limit.rate, limit.queue)
    assert abs(again.fill - limit.fill) <= 10**9 // (limit.rate * 64) + 1


@given(
    st.builds(
        Limit,
        st.integers(1, 1 << 30),
        st.integers(1, 1 << 60),
        st.integers(0, (1 << 32) - 1),
        st.integers(0, (1 << 32) - 1),
    )
)
def test_a_bucket_is_read_as_it_was_written(it: Limit) -> None:
    (message,) = messages.render(IngressKey("pw0"), Change(None, it), with_link=False)
    buckets = messages.Buckets([message.body])
    assert buckets.roots == {it.index: (it.rate, it.queue, it.fill)}
    assert attrs(message.body, 20)[1] == b"tbf\0"
