"""What people are told of a session, from what bgpd says of it."""

import json

import pytest
from msgspec import structs

from podwire.bgp.lines import without_secrets
from podwire.bgp.routes import advertised
from podwire.bgp.sessions import State, asn_in_open, neighbors, state, steady
from podwire.bgp.signatures import counts
from podwire.bgp.vty import Answer
from podwire.model.addresses import parse_prefix
from podwire.model.announcements import Attributes
from tests.unit.bgp_speakers import session

TOR = session("tor", "10.99.1.254", hold=90)
NEVER = {"bgpState": "Active", "lastResetDueTo": "No AFI/SAFI activated for peer", "lastResetTimerMsecs": 9000}
"""Of a neighbour that has never had a session."""


def told(**more: object) -> State:
    (only,) = neighbors(json.dumps({"10.99.1.254": {**NEVER, **more}})).values()
    return state(TOR, only, 1000.0)


@pytest.mark.parametrize(
    ("due", "code", "words"),
    [
        ("send", "0202", "the router is in another AS, expected 65010 (peerASN)"),
        ("received", "0202", "the router refuses AS 65001 for this node (myASN), it has another one configured"),
        ("send", "0400", "hold timer expired: nothing was heard of the router for 90 s"),
        ("received", "0400", "hold timer expired: the router heard nothing of the node"),
        ("send", "060A", "BFD: the router was not heard in time"),
        ("received", "0206", "the router refuses a hold time of 90 s (holdTimeSeconds)"),
        ("received", "0602", "the router ended it with NOTIFICATION Named (6/2)"),
        ("send", "0603", "this node ended it with NOTIFICATION Named (6/3)"),
    ],
)
def test_why_a_session_was_lost(due: str, code: str, words: str) -> None:
    now = told(lastResetDueTo=f"BGP Notification {due}", lastErrorCodeSubcode=code, lastNotificationReason="Named")
    assert now.lost == words
    assert now.since == 991.0
    assert words in now.error
    assert ("no TCP connection" in now.error) == (code[:2] != "02"), "an OPEN that is refused has come by TCP"


def test_without_a_connection_the_likely_reasons_are_named() -> None:
    assert told().error.startswith("no TCP connection with 10.99.1.254:179; check that it can be reached")
    (only,) = neighbors(json.dumps({"10.99.1.254": NEVER})).values()
    signed = state(session("tor", "10.99.1.254", password="hidden"), only, 0.0)
    assert "another password or none" in signed.error
    assert "hidden" not in repr(signed)
    seen = state(TOR, only, 0.0, unsigned="segments came that were signed")
    assert "; segments came that were signed;" in seen.error


def test_an_established_session_has_no_error_but_remembers_its_last_end() -> None:
    now = told(
        bgpState="Established",
        bgpTimerUpEstablishedEpoch=900,
        lastResetDueTo="BGP Notification send",
        lastErrorCodeSubcode="060A",
        messageStats={"totalSent": 5, "totalRecv": 7},
        addressFamilyInfo={"ipv4Unicast": {"acceptedPrefixCounter": 3, "sentPrefixCounter": 4}, "l2VpnEvpn": {}},
    )
    assert (now.error, now.since, now.messages_sent, now.messages_received) == ("", 900.0, 5, 7)
    assert now.lost == "BFD: the router was not heard in time"
    assert {name: (it.received, it.sent) for name, it in now.prefixes.items()} == {"IPv4": (3, 4)}


def test_a_moment_that_is_told_in_whole_seconds_stays_the_same() -> None:
    before = State("tor", "10.99.1.254", "Established", 900.0, established=1)
    assert steady(before, State("tor", "10.99.1.254", "Established", 901.0, established=1)).since == 900.0
    assert steady(before, State("tor", "10.99.1.254", "Established", 901.0, established=2)).since == 901.0
    assert steady(before, State("tor", "10.99.1.254", "Active", 901.0, established=1)).since == 901.0
    assert steady(None, before) is before


OPEN = "FFFFFFFF FFFFFFFF FFFFFFFF FFFFFFFF 0071 0104 {two} 00B4 0A6301FE 54 0206 0104 0001 0001 0202 8000 {four}"


@pytest.mark.parametrize(
    ("two", "four", "asn"),
    [("FDF2", "", 65010), ("5BA0", "0206 4104 FA56EA01", 4200000001), ("5BA0", "0208 0200 4104 FA56EA01", 4200000001)],
)
def test_which_as_number_a_refused_open_had(two: str, four: str, asn: int) -> None:
    """As FRR dumps it: groups of four bytes, on lines."""
    head = bytes.fromhex(OPEN.format(two=two, four=four))
    message = head[:28] + bytes([len(head) - 29]) + head[29:]
    groups = message.hex(" ", -4).upper().split()
    lines = "\n    ".join(" ".join(groups[at : at + 4]) for at in range(0, len(groups), 4))
    text = f"Last reset 0:00\n  Message received that caused BGP to send a NOTIFICATION:\n    {lines}\n  External BGP"
    assert asn_in_open(text) == asn


@pytest.mark.parametrize(
    "text", ["", "Message received that caused BGP to send a NOTIFICATION:\n    FFFF\n", "nothing"]
)
def test_no_as_number_where_there_is_no_open(text: str) -> None:
    assert asn_in_open(text) is None


def test_no_answer_and_no_line_shows_a_password() -> None:
    line = "neighbor 10.0.0.1 password hunter2"
    answer = Answer(line, f"% [BGP] Unknown command: {line}\n", 2)
    assert "hunter2" not in str(answer)
    assert str(answer).startswith("neighbor 10.0.0.1 password …: % [BGP] Unknown command: neighbor 10.0.0.1 password …")
    assert without_secrets(f"a\n{line}\nb") == "a\nneighbor 10.0.0.1 password …\nb"


def test_the_kernels_counters_of_wrong_signatures() -> None:
    text = "TcpExt: A TCPMD5NotFound TCPMD5Failure\nTcpExt: 1 2 3\nIpExt: B\nIpExt: 4\n"
    assert counts(text) == {"TCPMD5NotFound": 2, "TCPMD5Failure": 3}


@pytest.mark.parametrize(("own", "preference"), [(TOR.asn, 150), (TOR.asn + 1, None)], ids=["same AS", "another AS"])
def test_a_local_preference_is_shown_only_where_it_is_told(own: int, preference: int | None) -> None:
    told_so = {parse_prefix("203.0.113.1/32"): ((TOR.name, Attributes(("64600:100",), (), 150)),)}
    shown = json.dumps({"advertisedRoutes": {"203.0.113.1/32": {"network": "203.0.113.1/32"}}})
    (route,) = advertised(shown, structs.replace(TOR, local_asn=own), told_so)
    assert route.attributes == Attributes(("64600:100",), (), preference)
