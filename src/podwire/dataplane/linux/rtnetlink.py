"""Numbers of rtnetlink(7), and the marks by which our own objects are recognised."""

from podwire.dataplane.messages import attrs
from podwire.model.addresses import FAMILIES

PROTOCOL = 177
"""Ours: of routes (rtm_protocol), addresses (IFA_PROTO) and neighbours (NDA_PROTOCOL)."""
DOOMED = 0x7077
"""The link group of what waits for its deletion."""
NEWLINK, DELLINK, GETLINK, NEWADDR, DELADDR, GETADDR, NEWROUTE, DELROUTE, GETROUTE = (
    16, 17, 18, 20, 21, 22, 24, 25, 26,
)  # fmt: skip
NEWNEIGH, DELNEIGH, GETNEIGH, NEWNETCONF, NEWPROP, DELPROP = 28, 29, 30, 80, 108, 109
NEWRULE, DELRULE, GETRULE = 32, 33, 34
UP, PERMANENT, NO_DAD = 1, 0x80, 0x02
MAIN_TABLE, LOCAL_TABLE, UNIVERSE, LINK_SCOPE, NOWHERE, UNICAST, LOCAL = 254, 255, 0, 253, 255, 1, 2
ONLINK, SELF, BRIDGE = 4, 2, 7  # RTNH_F_ONLINK, NTF_SELF, AF_BRIDGE
ANY_TABLE, TO_TABLE = 0, 1  # RT_TABLE_UNSPEC, FR_ACT_TO_TBL
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_GROUP = (
    1, 3, 4, 5, 18, 20, 26, 27,
)  # fmt: skip
IFLA_OPERSTATE, IFLA_NET_NS_FD, IFLA_LINK_NETNSID, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 16, 28, 37, 52, 53
IFLA_EXT_MASK, IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES = 29, 31, 32
FAMILY_NUMBERS = frozenset(family.number for family in FAMILIES)
GETNSID, NETNSA_NSID, NETNSA_FD = 90, 1, 3
NO_NUMBER = -1
"""Of a namespace without a link to the node's, and of one that is being taken down (NETNSA_NSID_NOT_ASSIGNED)."""
FLAGS = -1  # beside a link's attributes, the flags of its header

Seen = dict[int, bytes]
"""The attributes of a message by their numbers."""


def is_marked(kind: int, body: bytes) -> bool:
    """Whether an address, route, rule or neighbour has our protocol number."""
    if kind in (NEWROUTE, DELROUTE):
        return body[5] == PROTOCOL
    at, mark = (8, 11) if kind in (NEWADDR, DELADDR) else (12, 21) if kind in (NEWRULE, DELRULE) else (12, 12)
    return attrs(body, at).get(mark) == bytes((PROTOCOL,))
