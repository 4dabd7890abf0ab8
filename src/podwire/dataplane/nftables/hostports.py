"""Ports of the node that lead to pods' (CNI conventions, "portMappings"): their maps and rules, as text for nft. Pure.

Invariants: they are asked after the Services, for first packets that no Service takes and that are sent to an address
of the node: of all others only such first ones pay, for one look at the kind of their destination. A port at a named
address is looked up before the same port at all addresses. The node's own loopback is reached from the node only
(CVE-2020-8558), whatever route_localnet says; of IPv6 it can't be translated, nor can a link's own address.
"""

ALL, AT = "host_ports", "host_ports_at"
"""At all addresses of the node, and at one. They grow as they are filled: few pods have any."""
MAPS = (ALL, AT)
CHAIN = "host_port"
FOUND = f"fib daddr type local goto {CHAIN}"
"""Of what no Service has taken."""
_LOOPBACK = "ip daddr 127.0.0.0/8"


def maps(where: str, kind: str) -> list[str]:
    """`where`: the table; `kind`: nft's type of an address."""
    pod = f"{kind} . inet_service"
    return [
        f"add map {where} {ALL} {{ type inet_proto . inet_service : {pod}; }}",
        f"add map {where} {AT} {{ type {kind} . inet_proto . inet_service : {pod}; }}",
    ]


def rules(ip: str, looks: int) -> list[str]:
    """Of the chain. A new sandbox has a port after an old one, in one commit: hence several looks."""
    unreached = ["ip6 daddr ::1 return", "ip6 daddr fe80::/10 return"] if ip == "ip6" else []
    port = "meta l4proto . th dport"
    named = [f"{ip} daddr . {port} map @{AT}"] * looks
    asked = [*named, *[f"{port} map @{ALL}"] * looks]
    return [*unreached, *(f"dnat {ip} addr . port to {one}" for one in asked)]


def guarding(ip: str) -> list[str]:
    """Of what belongs to no connection that is known: such packets bear the address that their sender gave them."""
    return [f'iif != "lo" {_LOOPBACK} drop'] if ip == "ip" else []


def hiding(ip: str) -> list[str]:
    """What the node sends from its loopback: to pods no answer could come back."""
    return ['ip saddr 127.0.0.0/8 oifname "pw*" masquerade'] if ip == "ip" else []
