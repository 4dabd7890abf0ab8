"""The constant rules of one family's table, as text for nft. Pure.

Invariants: rules never change while the table lives; what changes is elements of maps and sets. Every rule keeps a
shape that nft lists rightly and, where it can, loads again: other tools on the node read it. All of it is added to an
empty table, in one transaction: into a filled one nft 1.0.6 adds no rule that names `eps`. Whatever a commit may delete
and add again in one go is looked up twice: see LOOKS.

    guard,     the only chains that see each packet, so they first let go what needs no more than to be counted. Of the
    guardout   rest, whoever may not use a restricted frontend is dropped, and what a pod sends in another's name
    tunnelled  what VXLAN's port takes, which asks nobody who he is: from the other ends of tunnels, to this one's.
               Nobody's Service, host port or restriction has these packets; nor does one lead others there (`in`, post)
    pre, out   a frontend's verdict in `svc` sends the packet to the chain of its capacity class. One that has another
               list for clients in the cluster has that in `svc_internal`, and its verdict for all others not in `svc`
               but in `svc_outside`: so whoever asks for a cluster IP pays for one lookup
    draw4      its one rule draws one of 4 slots of `eps` and rewrites the destination; an empty slot breaks it. Such a
               chain is all that names `eps`: the kernel asks each rule that does at each element that comes
    c1 … c8192 jump there again and again, so that an empty slot is drawn for once more; then to draw one from the lower
               half, which is always full; then the first slot, since every lookup reads the newest generation: a
               frontend may have left this class in between. The one slot of c1 is drawn twice
    i1 … i8192 the same for the cluster's list, by drawin1 …: its slots are numbered from INTERNAL on
    affine60   asks who is remembered for 60 seconds (map `affinity60`) with a backend that is still among those in
               `serving`, and sends the others to the class in `drawn`; affinein60 does it for the cluster's list, with
               `serving_internal`. These come and go with the Services: see affinity.py
    pre, out   first packets that were not translated end in `refuse`: what goes to a refused frontend or to an address
               that is only a Service's is refused at once, and in pre what comes from elsewhere to an external IP;
               what goes to a dropped one vanishes
    host_port  what is left and goes to an address of the node may be for a pod's host port: see hostports.py
    in         counts a connection with its first packet (`served`), and remembers who connects (`remember`), by the
               chain learn60 that `remembered` names; so does post
    arrived,   there only where packets are counted: each further one of a Service's connection, by frontend and
    traffic    direction, TCP's first. The elements come with the first (`traffic_add`, `served_add`), if it is a
               Service's (`traffic_new`, `served_new`)
    unplaced   what connection tracking can't place is not translated, and not refused either: what goes to a Service's
               address is dropped, since it would circle
    stray      a segment that it can't place would go on to one who knows no such connection, and resets the one that
               lives: from and to pods, Services and the node it is dropped
    own        what the node's own pods send: one that reaches itself through a Service must see another source; so
               must whoever is outside of the cluster and knows no way to a pod: all but `unmasqueraded` and this
               node's pods
    post       so must a pod that the node reaches by VXLAN, where the node itself is the client, by another address
               than that of its block
    remote     so must a backend elsewhere whose client is elsewhere too: its answer has to come back by this node

No rule asks `departed`: it is the agent's own note (departed.py).
"""

from podwire.dataplane.nftables import hostports
from podwire.model.addresses import IPV4, Family
from podwire.model.room import Capacity

TABLE = "podwire"
CLASSES = tuple(1 << n for n in range(14))
"""Slots. A class costs 20 rules of each family; what a Service of so many backends costs is its elements."""
MOST_BACKENDS = CLASSES[-1]
DRAWS = 6
"""From all slots, before the one from the full lower half: at worst one in 64 new connections gets there."""
LOOKS = 2
"""Before Linux 6.17 (b2f742c846ca, "netfilter: nf_tables: restart set lookup on base_seq change", which may have been
ported back) a lookup that goes on while a commit deletes a key and adds it again may find neither. That is what a
replaced backend does in `eps`, and a frontend that changes its class in `svc` and `drawn`. Each lookup reads the
generation anew, so the next one finds it."""
SLOTS = 1 << 18
"""Of all frontends of a family together. For each rule that names a map the kernel walks through all its buckets: with
a million of them the rules of the classes would take a second."""
FRONTENDS = 1 << 17
REMEMBERING = 1 << 16
"""Of a family: all frontends, and those that remember their clients."""
CAPACITY = Capacity((FRONTENDS, SLOTS, REMEMBERING), MOST_BACKENDS)
INTERNAL = 1 << 16
"""The number of the first slot of a list for clients in the cluster."""
PROTOCOLS = ("tcp", "udp", "sctp")
SEAL = "layout"
"""An empty chain whose comment is the digest of what the table reads as just after loading."""

_HOOKS = {
    "guard": "filter hook prerouting priority -110",
    "guardout": "filter hook output priority -110",
    "pre": "nat hook prerouting priority -100",
    "out": "nat hook output priority -100",
    "in": "nat hook input priority 100",
    "post": "nat hook postrouting priority 100",
}


def keyword(family: Family) -> str:
    """What nft calls the family."""
    return "ip" if family == IPV4 else "ip6"


def layout(family: Family, traffic: bool = False) -> str:
    """Commands that make an empty table with all chains, maps, sets and rules. `traffic`: every packet of a Service's
    connections is counted, not their first alone."""
    ip = keyword(family)
    where = f"{ip} {TABLE}"
    rules = _rules(ip, traffic)
    lines = [f"add table {where}", *_maps(family)]
    hooks = {name: f" {{ type {hook}; }}" for name, hook in _HOOKS.items()}
    lines += [f"add chain {where} {name}{hooks.get(name, '')}" for name in rules]
    lines += [f"add rule {where} {name} {rule}" for name, some in rules.items() for rule in some]
    return "\n".join(lines)


def rules_of(family: Family, traffic: bool = False) -> dict[str, list[str]]:
    """By chain, in their order."""
    return _rules(keyword(family), traffic)


def hook_of(chain: str) -> str:
    """Where the kernel comes to the chain; "" where another chain leads there."""
    return _HOOKS[chain].split()[2] if chain in _HOOKS else ""


def renew(family: Family, traffic: bool = False) -> str:
    """Commands that put such a table in the place of whatever is there."""
    where = f"{keyword(family)} {TABLE}"
    return f"add table {where}\ndelete table {where}\n{layout(family, traffic)}"


def holders(family: Family) -> frozenset[str]:
    """The names of its maps and sets, and of the chains to which their elements lead."""
    maps = (line.split()[4] for line in _maps(family))
    return frozenset((*maps, *(f"{letter}{size}" for letter in "ci" for size in CLASSES)))


def _maps(family: Family) -> list[str]:
    """Fixed sizes select the map that does not resize: twice as fast to load. Those of affinity, which few Services
    have, grow as they are filled."""
    ip = keyword(family)
    where, kind = f"{ip} {TABLE}", "ipv4_addr" if family == IPV4 else "ipv6_addr"
    slot = f"{ip} daddr . meta l4proto . th dport . numgen random mod 2"
    frontend = f"{kind} . inet_proto . inet_service"
    pair = f"{frontend} . {kind} . inet_service"  # a frontend and one of its backends
    return [
        f"add map {where} svc {{ type {kind} . inet_proto . inet_service : verdict; size {FRONTENDS}; }}",
        f"add map {where} svc_internal {{ type {kind} . inet_proto . inet_service : verdict; size {FRONTENDS}; }}",
        f"add map {where} svc_outside {{ type {kind} . inet_proto . inet_service : verdict; size {FRONTENDS}; }}",
        f"add map {where} drawn {{ type {kind} . inet_proto . inet_service : verdict; size {REMEMBERING}; }}",
        f"add map {where} drawn_internal {{ type {kind} . inet_proto . inet_service : verdict; size {REMEMBERING}; }}",
        f"add map {where} remembered {{ type {kind} . inet_proto . inet_service : verdict; size {REMEMBERING}; }}",
        f"add map {where} shared {{ type {frontend} : {kind} . inet_service; size {REMEMBERING}; }}",
        f"add set {where} serving {{ type {pair}; }}",
        f"add set {where} serving_internal {{ type {pair}; }}",
        f"add set {where} departed {{ type {pair}; }}",
        f"add map {where} eps {{ typeof {slot} : {ip} daddr . th dport; size {SLOTS}; }}",
        f"add set {where} refused {{ type {kind} . inet_proto . inet_service; size {FRONTENDS}; }}",
        f"add set {where} dropped {{ type {kind} . inet_proto . inet_service; size {FRONTENDS}; }}",
        f"add set {where} restricted {{ type {kind} . inet_proto . inet_service; size {FRONTENDS}; }}",
        f"add set {where} allowed {{ type {kind} . inet_proto . inet_service . {kind}; flags interval; }}",
        f"add set {where} cluster {{ type {kind}; flags interval; }}",
        f"add set {where} unmasqueraded {{ type {kind}; flags interval; }}",
        f"add set {where} service_ranges {{ type {kind}; flags interval; }}",
        f"add set {where} external {{ type {kind} . inet_proto . inet_service; size {FRONTENDS}; }}",
        f"add set {where} external_ips {{ type {kind}; size 65536; }}",
        f"add set {where} tunnels {{ type {kind}; size 65536; }}",
        f"add set {where} tunnel_ports {{ type inet_service; size 16; }}",
        f"add set {where} pods {{ type {kind} . {kind}; size 65536; }}",
        *hostports.maps(where, kind),
        *_counters(where, kind),
    ]


def _counters(where: str, kind: str) -> list[str]:
    """Sets that the kernel fills by itself, an element for each frontend that is used. A full one only counts less."""
    frontend = f"type {kind} . inet_proto . inet_service"
    return [
        f"add set {where} connections {{ {frontend}; size 131072; flags dynamic; counter; }}",
        f"add set {where} traffic {{ {frontend} . ct_dir; size 262144; flags dynamic; counter; }}",
    ]


def _guarded(chain: str, ip: str, original: str) -> list[str]:
    """To the chain goes what is a Service's at all: others rewrite destinations too."""
    external = [f"meta l4proto {p} {original} @external goto {chain}" for p in PROTOCOLS]
    return [f"ct original {ip} daddr @service_ranges goto {chain}", *external]


def _counting_connections(ip: str, original: str) -> dict[str, list[str]]:
    """What is counted is looked up; only what is not there yet asks whether it is a Service's."""
    made = [f"meta l4proto {p} {original} @connections goto remember" for p in PROTOCOLS]
    return {
        "served": [*made, "jump served_new", "goto remember"],
        "remember": [f"meta l4proto {p} {original} vmap @remembered" for p in PROTOCOLS],
        "served_new": _guarded("served_add", ip, original),
        "served_add": [f"meta l4proto {p} add @connections {{ {original} }}" for p in PROTOCOLS],
    }


def _counting_packets(ip: str, original: str) -> dict[str, list[str]]:
    """The same of packets, but for the first of a connection, which `connections` has counted."""
    packet = f"{original} . ct direction"
    # Of what a client sends the packet's own destination is still what it asked for, and quicker to get.
    sent = f"ct direction original meta l4proto tcp {ip} daddr . meta l4proto . th dport . ct direction @traffic accept"
    counted = [f"meta l4proto {p} {packet} @traffic accept" for p in PROTOCOLS]
    return {
        "arrived": [sent, counted[0], *_datagrams(ip), "goto traffic"],
        "traffic": [*counted, "goto traffic_new"],
        "traffic_new": _guarded("traffic_add", ip, original),
        "traffic_add": [f"meta l4proto {p} add @traffic {{ {packet} }}" for p in PROTOCOLS],
    }


def _spoofed(ip: str) -> str:
    """From a pod's link comes only what its own routes lead back there; of IPv6 also what never leaves the link."""
    own = "ip6 saddr != fe80::/10 ip6 saddr != :: " if ip == "ip6" else ""
    return f'iifname "pw*" {own}fib saddr . iif oif missing drop'


def _datagrams(ip: str) -> list[str]:
    """In connections that are known IPv4 leaves that to the kernel's own check, the link's rp_filter; which a datagram
    to a connected socket of the node passes by, since the socket knows its route (net.ipv4.udp_early_demux)."""
    return [f"meta l4proto udp {_spoofed(ip)}"] if ip == "ip" else []


def _guarding(ip: str, frontend: str, traffic: bool) -> dict[str, list[str]]:
    """A packet of a connection that is known pays for one hook, and for no more rules than it has to: that is felt."""
    # First packets only: a source that may no longer come keeps the connections that it has, as with kube-proxy.
    restricted = f"ct state new {frontend} @restricted {frontend} . {ip} saddr != @allowed drop"
    known = "ct status seen-reply,dnat / seen-reply,dnat"  # of a connection that a Service's frontend began
    back = f"ct status ! dnat {_came(ip)}"
    return {
        "guard": [
            *([_spoofed(ip)] if ip == "ip6" else []),
            # What goes through lo was counted on its way out.
            *([f'{known} iif != "lo" goto arrived'] if traffic else []),
            *(["meta l4proto tcp ct state established accept"] if ip == "ip" and not traffic else []),
            "ct state established goto known",
            *hostports.guarding(ip),
            "ct state invalid jump unplaced",
            *([_spoofed(ip)] if ip == "ip" else []),
            "udp dport @tunnel_ports jump tunnelled",  # never established: the kernel's socket answers nobody
            restricted,
            "ct status ! confirmed accept",  # a first packet
            # Of a flow that a Service led to the port before it was the tunnels'.
            f"meta l4proto udp ct status dnat ct reply {ip} saddr @tunnels ct reply proto-src @tunnel_ports drop",
            *(['ct status dnat iif != "lo" goto arrived'] if traffic else ["ct status dnat accept"]),
            # A pod's packet, or the node's own, that the network led back is no first one, so that NAT's chains don't
            # see it. Where a pod's came by a bridge, a reset would go back by that, to who knows no way to the pod.
            f"meta l4proto tcp {back} fib saddr type local reject with tcp reset",
            f"{back} reject",
        ],
        "known": [*_datagrams(ip), "accept"],
        "guardout": [
            *([f"{known} goto traffic"] if traffic else []),
            "ct state established accept",
            f"ct state invalid {ip} daddr @service_ranges drop",
            f"udp dport @tunnel_ports {ip} daddr @tunnels accept",
            restricted,
            *(["ct status dnat goto traffic"] if traffic else []),
        ],
    }


def _stopping(ip: str) -> dict[str, list[str]]:
    """Where `guard` leads what may be stopped, and is no packet of a connection that is known."""
    return {
        "tunnelled": [
            # Behind this node's address it would be let in there.
            f'iifname "pw*" {ip} daddr @tunnels drop',
            "fib daddr type unicast return",
            *(["fib daddr type unreachable return"] if ip == "ip6" else []),  # a Service's, without a default route
            # Broadcasts reach the socket too, as do the node's other addresses, to which a pod's may be masqueraded.
            f'iif != "lo" {ip} daddr != @tunnels drop',
            f'iif != "lo" {ip} saddr != @tunnels drop',
            "accept",
        ],
        "unplaced": [
            # A reset or a SYN out of order harms nobody; a SYN's answer may be all that a node on one of two ways sees.
            "tcp flags ! syn,rst goto stray",
            # NAT's chains, which refuse, don't see it, and it would be led here again and again.
            f"{ip} daddr @service_ranges drop",
            f"{_came(ip)} drop",
        ],
        "stray": [
            'iifname "pw*" drop',
            f"{ip} daddr . {ip} daddr @pods drop",
            f"{ip} daddr @service_ranges drop",
            f"{ip} daddr @external_ips drop",
            'iifname != "lo" fib daddr type local drop',
        ],
    }


def _rules(ip: str, traffic: bool) -> dict[str, list[str]]:
    frontend = f"{ip} daddr . meta l4proto . th dport"
    rules = _guarding(ip, frontend, traffic) | _stopping(ip)
    rules |= {
        "pre": [
            f"udp dport @tunnel_ports {ip} saddr @tunnels {ip} daddr @tunnels return",
            *_found(frontend, f"{ip} saddr @cluster "),
            "jump refuse",
            hostports.FOUND,
            *_elsewhere(ip),
        ],
        "out": [
            f"udp dport @tunnel_ports {ip} daddr @tunnels return",
            *_found(frontend),
            "jump refuse",
            hostports.FOUND,
        ],
        "refuse": _refusing(ip, frontend),
        hostports.CHAIN: hostports.rules(ip, LOOKS),
    }
    original = f"ct original {ip} daddr . meta l4proto . ct original proto-dst"
    rules |= _counting_connections(ip, original) | (_counting_packets(ip, original) if traffic else {})
    return rules | _leaving(ip, original) | _drawing(ip, frontend)


def _leaving(ip: str, original: str) -> dict[str, list[str]]:
    """These chains see the first packet of a connection only: that is when it is counted, its client remembered, and
    who it is decided. `pods` holds each local pod's address twice, so that one set answers both "is it local?" and "is
    it itself?"."""
    return {
        "in": ["udp dport @tunnel_ports ct status dnat drop", "ct status dnat jump served"],
        "post": [
            f"udp dport @tunnel_ports {ip} daddr @tunnels ct status dnat drop",
            "ct status dnat jump served",
            *hostports.hiding(ip),
            f"{ip} saddr . {ip} saddr @pods goto own",
            # The node's own sockets have the InternalIP as their source, to which no answer comes back by VXLAN.
            f'oifname "podwire-vxlan*" {ip} saddr != @cluster fib saddr type local masquerade',
            f"ct status dnat ct original {ip} daddr @service_ranges goto remote",
            *(f"ct status dnat meta l4proto {protocol} {original} @external goto remote" for protocol in PROTOCOLS),
        ],
        "own": [
            f"{ip} saddr . {ip} daddr @pods masquerade",
            f"{ip} daddr != @unmasqueraded {ip} daddr . {ip} daddr != @pods masquerade",
            "accept",
        ],
        "remote": [
            f"{ip} daddr . {ip} daddr @pods return",
            "fib saddr type local return",
            "fib daddr type local return",
            "masquerade",
        ],
    }


def _drawing(ip: str, frontend: str) -> dict[str, list[str]]:
    """The capacity classes."""
    rules: dict[str, list[str]] = {}
    for size in CLASSES:
        draws = [size] * (DRAWS if size > 2 else LOOKS) + sorted({1, size // 2} - {0, size}, reverse=True)
        for letter, draw, first in (("c", "draw", ""), ("i", "drawin", f" offset {INTERNAL}")):
            slot = f"{frontend} . numgen random mod {size}{first}"
            rules[f"{draw}{size}"] = [f"dnat {ip} addr . port to {slot} map @eps"]
            rules[f"{letter}{size}"] = [*(f"jump {draw}{k}" for k in draws), "goto refuse"]
    return rules


def _found(frontend: str, inside: str = "") -> list[str]:
    """To the class of a frontend that has one list, or of one that has two. `inside`: asks for clients in the cluster.
    Each map is asked twice (LOOKS), `svc` once more after the others have been: meanwhile the frontend may have lost
    its second list."""
    one, outside = f"{frontend} vmap @svc", f"{frontend} vmap @svc_outside"
    return [one, *[f"{inside}{frontend} vmap @svc_internal"] * LOOKS, outside, one, outside]


def _refusing(ip: str, frontend: str) -> list[str]:
    """What goes to an address of a Service's and was not translated. NAT's chains see first packets only."""
    # TCP by reset: an ICMP answer to a socket that is just sending is lost.
    return [
        f"{frontend} @dropped drop",
        f"meta l4proto tcp {frontend} @refused reject with tcp reset",
        f"{frontend} @refused reject",
        f"meta l4proto tcp {ip} daddr @service_ranges reject with tcp reset",
        f"{ip} daddr @service_ranges reject",
    ]


def _elsewhere(ip: str) -> list[str]:
    """What comes in from elsewhere to an external IP was led here by the network, and would be led here again. Where it
    is a node's own, the node may answer."""
    came = _came(ip)
    return [f"meta l4proto tcp {came} reject with tcp reset", f"{came} reject"]


def _came(ip: str) -> str:
    return f'iifname != "pw*" {ip} daddr @external_ips fib daddr type != local'
