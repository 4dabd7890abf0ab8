"""A node on which all is well, and changes of single facts by their path."""

from typing import Any

from msgspec.structs import replace

from podwire.doctor.facts import (
    AddressFact,
    Agent,
    Api,
    Chain,
    Cluster,
    Cni,
    Conflist,
    Disk,
    Facts,
    Filters,
    InterfaceSettings,
    Kernel,
    LinkFact,
    Network,
    NodeFact,
    Others,
    Plugin,
    RouteFact,
    Rule,
    Server,
    Settings,
    Setup,
    Trial,
)
from podwire.model.addresses import parse_address, parse_prefix, prefix_around
from podwire.nodes.own import SYSCTLS
from podwire.views import BlockView, StatusView

DAY = 86_400.0
NOW = 1_800_000_000.0
V4, V6 = parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/64")
RANGES = (parse_prefix("10.96.0.0/16"), parse_prefix("fd00:96::/112"))
SERVER = Server("https://192.0.2.10:6443", "", 200, NOW + 100 * DAY, NOW)


def address(link: str, text: str, ours: bool = False) -> AddressFact:
    host, _, length = text.partition("/")
    own = parse_address(host)
    return AddressFact(link, own, prefix_around(own, int(length)), ours)


def route(text: str, link: str, **more: Any) -> RouteFact:
    return RouteFact(parse_prefix(text), link, **more)


def chain(family: str, table: str, name: str, policy: str = "", *rules: str, hook: str = "") -> Chain:
    """A rule is `CONDITION, CONDITION: VERDICT`."""
    parsed = []
    for text in rules:
        conditions, _, verdict = text.rpartition(": ")
        parsed.append(Rule(tuple(conditions.split(", ")) if conditions else (), verdict))
    return Chain(family, table, name, hook or ("forward" if policy else ""), policy, tuple(parsed))


def status(**changes: Any) -> StatusView:
    held = StatusView(
        node="one",
        version="0.1.0",
        ready=True,
        not_ready=None,
        uptime=5.0,
        mtu=1500,
        pod_cidrs=(BlockView("10.1.1.0/24", 1, 252),),
        service_cidrs=("10.96.0.0/16",),
        counts={},
        writes={},
        unknown={"linux": 0},
        source_errors=(),
    )
    return replace(held, **changes)


def healthy() -> Facts:
    plain = InterfaceSettings("1", "0", "0", "0")
    return Facts(
        setup=Setup(
            version="0.1.0",
            now=NOW,
            config="/etc/podwire/agent.toml",
            node="one",
            state_dir="/var/lib/podwire",
            kubernetes=True,
        ),
        kernel=Kernel("6.12.1-amd64", (), "", "/usr/bin/python3.11", Trial({"IPv4": "", "IPv6": ""})),
        settings=Settings(
            dict(SYSCTLS),
            {
                "all": plain,
                "default": plain,
                "lo": plain,
                "eth0": plain,
                "pw0123456789ab": InterfaceSettings("1", "1", "0", "0"),
            },
            (100, 262144),
            (),
        ),
        network=Network(
            (LinkFact("lo", 65536), LinkFact("eth0", 1500), LinkFact("pw0123456789ab", 1500)),
            (
                address("lo", "127.0.0.1/8"),
                address("eth0", "192.0.2.1/24"),
                address("lo", "10.1.1.1/32", ours=True),
                address("lo", "fd01::1/128", ours=True),
            ),
            (
                route("0.0.0.0/0", "eth0"),
                route("192.0.2.0/24", "eth0"),
                route("10.1.1.2/32", "pw0123456789ab", ours=True),
                route("10.1.2.0/24", "eth0", ours=True),
                route("10.96.0.0/16", "lo", ours=True),
                route("fd01::1/128", "lo"),
            ),
        ),
        filters=Filters((), (), (), {"IPv4": True, "IPv6": True}),
        others=Others(frozenset({"systemd", "kubelet"})),
        api=Api("", (SERVER,), NOW + 300 * DAY, ()),
        cluster=Cluster(
            {
                "one": NodeFact((V4, V6), (parse_address("192.0.2.1"), parse_address("2001:db8::1"))),
                "two": NodeFact((parse_prefix("10.1.2.0/24"),), (parse_address("192.0.2.2"),)),
            },
            RANGES,
        ),
        cni=Cni(
            Plugin(True, True, "/usr/bin/python3.11", (), True, "/var/lib/podwire/cni.sock", "/var/lib/podwire/spool"),
            (Conflist("10-podwire.conflist", ("podwire",)),),
            {"VERSION": "", "STATUS": ""},
        ),
        agent=Agent(status()),
        disk=Disk(True, 1 << 30),
    )


def changed(facts: Any, **changes: Any) -> Any:
    """`kernel__release="5.4"` changes facts.kernel.release; an interface or node by its name goes within a dict."""
    for path, value in changes.items():
        facts = _changed(facts, path.split("__"), value)
    return facts


def _changed(held: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if isinstance(held, dict):
        return held | {name: _changed(held[name], rest, value) if rest else value}
    return replace(held, **{name: _changed(getattr(held, name), rest, value) if rest else value})
