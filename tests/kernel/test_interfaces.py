"""Pods with several interfaces, with several sandboxes one after the other, and with names of any form and length."""

import hashlib
import socket
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec
import pytest

from podwire.controller.events import AddPod, DeletePod, Refusal
from podwire.controller.transaction import Result
from podwire.model.addresses import parse_prefix, show_address
from podwire.model.objects import AttachmentKey, Node, PodKey
from podwire.pods import names
from podwire.pods.lookup import get_interface_name
from tests.kernel.hands import links_gone
from tests.kernel.rig import NODE, Rig, Space, ask, dump, identity, in_space, respond, service, sh, silence

OBJECTS = service("web", 10, ("10.1.1.2", "fd01::2"))
TO_WEB = ("10.96.0.10", "fd00:96::a")


async def attach(
    rig: Rig, space: Space, sandbox: str, interface: str = "eth0", pod: str = "p", uid: str = ""
) -> Result:
    key = AttachmentKey(sandbox, interface)
    add = AddPod(key, PodKey("default", pod), space.path, *identity(space.path), uid=uid, network=interface)
    return await rig.running.controller.submit(add)


async def detach(rig: Rig, sandbox: str, interface: str = "eth0") -> None:
    assert (await rig.running.controller.submit(DeletePod(AttachmentKey(sandbox, interface)))).error is None


def addresses(rig: Rig) -> dict[str, tuple[str, ...]]:
    """By sandbox and interface."""
    held = rig.running.controller.snapshot.attachments
    return {f"{key.sandbox}/{key.interface}": tuple(map(show_address, it.addresses)) for key, it in held.items()}


def links(space: Space) -> set[str]:
    lines = sh("ip", "-n", space.name, "-o", "link").splitlines()
    return {line.split(": ")[1].partition("@")[0] for line in lines} - {"lo"}


# --- several interfaces ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("eth0", "net1", "net2"), ("net2", "eth0.5", "eth0")], ids=" then ".join)
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_interfaces_of_one_pod_keep_apart(rig: Rig, order: tuple[str, ...], restarted: bool) -> None:
    """Each answers by its own addresses, whoever asks; a DEL of one leaves the others."""
    await rig.start_with_pods("web", objects=OBJECTS)
    clean, client, pod = dump(), rig.pods["web"], rig.space("p")
    for interface in order:
        assert (await attach(rig, pod, "s", interface)).error is None
    assert (await attach(rig, pod, "s", order[1])).error is None  # a repeated one
    if restarted:
        await rig.stop()
        assert (await rig.start(OBJECTS)).error is None
        assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    now = rig.running.controller.snapshot
    named = [get_interface_name(now, "default", "p", interface) for interface in order]
    assert get_interface_name(now, "default", "p") == named[0]
    assert all(name is not None and name in sh("ip", "-o", "link") for name in named)
    assert len(set(named)) == len(set().union(*addresses(rig).values())) / 2 - 1 == len(order)
    respond(pod, "p")

    def answer(*interfaces: str) -> None:
        for interface in interfaces:
            for address in addresses(rig)[f"s/{interface}"]:
                assert ask(None, address, 8080).startswith("p ")
                assert ask(client, address, 8080).startswith("p ")
        for to in TO_WEB:
            assert ask(pod, to).split()[1] in addresses(rig)[f"s/{interfaces[0]}"]

    answer(*order)
    assert await rig.drift() == []
    await detach(rig, "s", order[0])
    rig.running.linux.collect()
    assert links(pod) == set(order[1:])
    answer(*order[1:])
    await detach(rig, "s", order[2])
    answer(order[1])
    assert await rig.drift() == []
    await detach(rig, "s", order[1])
    silence()
    rig.running.linux.collect()
    assert dump() == clean
    assert links(pod) == set()
    assert await rig.drift() == []


@pytest.mark.parametrize("first", ["eth0", "net1"])
async def test_of_a_dead_pod_each_interface_goes_by_its_own_del(rig: Rig, first: str) -> None:
    """Whatever the other one should have in the namespace then."""
    await rig.start_with_pods("web", objects=OBJECTS)
    clean, pod = dump(), rig.space("p")
    for interface in ("eth0", "net1"):
        assert (await attach(rig, pod, "s", interface)).error is None
    sh("ip", "netns", "del", pod.name)
    for interface in (first, "net1" if first == "eth0" else "eth0"):
        links_gone(rig, "p", "s", interface)
    for interface in (first, "net1" if first == "eth0" else "eth0"):
        gone = await rig.running.controller.submit(DeletePod(AttachmentKey("s", interface)))
        assert gone.error_without("store") is None
    rig.running.linux.collect()
    assert dump() == clean
    assert await rig.drift() == []


@pytest.mark.parametrize("held", [False, True], ids=["the old one is gone", "somebody holds the old one"])
@pytest.mark.parametrize("order", [("eth0", "net1"), ("net1", "eth0")], ids=" before ".join)
async def test_a_sandbox_in_a_new_namespace_gets_one_interface_after_the_other(
    rig: Rig, order: tuple[str, str], held: bool
) -> None:
    """The other one, which the runtime has not asked for yet, is in nobody's way."""
    await rig.start_with_pods("web", objects=OBJECTS)
    pod = rig.space("p")
    for interface in ("eth0", "net1"):
        assert (await attach(rig, pod, "s", interface)).error is None
    with ExitStack() as holding:
        if held:
            holding.enter_context(in_space(pod, socket.AF_INET, socket.SOCK_DGRAM))
        sh("ip", "netns", "del", pod.name)
        for interface in () if held else ("eth0", "net1"):
            links_gone(rig, "p", "s", interface)
        sh("ip", "netns", "add", pod.name)
        for interface in order:
            assert (await attach(rig, pod, "s", interface)).error is None
            for to in TO_WEB:
                assert ask(pod, to).startswith("web ")
    assert set(addresses(rig)) == {"sandbox-web/eth0", "s/eth0", "s/net1"}
    rig.running.linux.collect()
    assert (await rig.resync()).error is None
    assert await rig.drift() == []
    for interface in order:
        await detach(rig, "s", interface)
    rig.running.linux.collect()
    assert set(addresses(rig)) == {"sandbox-web/eth0"}
    assert await rig.drift() == []


async def test_what_a_hand_takes_from_a_second_interface_comes_back(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    pod = rig.space("p")
    for interface in ("eth0", "net1"):
        assert (await attach(rig, pod, "s", interface)).error is None
    respond(pod, "p")
    for family, address in zip(("-4", "-6"), addresses(rig)["s/net1"], strict=True):
        sh("ip", "-n", pod.name, family, "rule", "del", "from", address)
    assert len(await rig.drift()) == 2
    assert (await rig.resync()).error is None
    assert await rig.drift() == []
    rig.watch()
    ended = rig.running.controller.next_record()
    sh("ip", "-n", pod.name, "rule", "del", "from", addresses(rig)["s/net1"][0])
    assert "Disturbed linux" in (await ended).event
    assert await rig.drift() == []
    assert ask(rig.pods["web"], addresses(rig)["s/net1"][0], 8080).startswith("p ")


async def test_an_interface_of_another_sandbox_in_the_same_namespace_is_named(rig: Rig) -> None:
    await rig.start_with_pods("a", objects=OBJECTS)
    clean = dump()
    result = await attach(rig, rig.pods["a"], "other")
    assert result.refusal is Refusal.OCCUPIED
    assert "eth0 of sandbox sandbox-a (pod default/a)" in (result.error or "")
    assert dump() == clean


# --- several sandboxes -------------------------------------------------------------------------


@pytest.mark.parametrize("lives", [True, False], ids=["its namespace is there", "its namespace is gone"])
@pytest.mark.parametrize("uid", ["u", ""], ids=["with UID", "without UID"])
async def test_a_new_sandbox_takes_the_place_of_the_old_one(rig: Rig, lives: bool, uid: str) -> None:
    """And the late DEL of the old one changes nothing."""
    await rig.start_with_pods("web", objects=OBJECTS)
    old, new = rig.space("old"), rig.space("new")
    assert (await attach(rig, old, "s1", uid=uid)).error is None
    assert (await attach(rig, old, "s1", "net1", uid=uid)).error is None
    if not lives:
        sh("ip", "netns", "del", old.name)
    assert (await attach(rig, new, "s2", uid="u")).error is None
    if not lives:  # the kernel takes a namespace's links away in its own time
        for interface in ("eth0", "net1"):
            links_gone(rig, "p", "s1", interface)
    for to in TO_WEB:
        assert ask(new, to).startswith("web ")
    assert set(addresses(rig)) == {"sandbox-web/eth0", "s1/net1", "s2/eth0"}
    assert addresses(rig)["s2/eth0"] == ("10.1.1.5", "fd01::5")
    assert rig.rows() == 3
    node = dump()
    await detach(rig, "s1")
    assert dump() == node
    assert "10.1.1.3" not in node
    await detach(rig, "s1", "net1")
    rig.running.linux.collect()
    assert await rig.drift() == []
    assert ask(new, TO_WEB[0]) == "web 10.1.1.5"


async def test_a_pod_whose_name_is_another_s_now_keeps_its_network_until_its_own_del(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    old, new = rig.space("old"), rig.space("new")
    assert (await attach(rig, old, "s1", uid="u")).error is None
    assert (await attach(rig, new, "s2", uid="v")).error is None
    assert ask(old, TO_WEB[0]) == "web 10.1.1.3"
    assert ask(new, TO_WEB[0]) == "web 10.1.1.4"
    newest = get_interface_name(rig.running.controller.snapshot, "default", "p")
    assert newest in sh("ip", "route", "show", "10.1.1.4/32")
    await detach(rig, "s1")
    assert ask(new, TO_WEB[0]) == "web 10.1.1.4"
    third = rig.space("third")
    sh("ip", "netns", "del", new.name)
    links_gone(rig, "p", "s2")
    assert (await attach(rig, third, "s3", uid="w")).error is None
    assert set(addresses(rig)) == {"sandbox-web/eth0", "s3/eth0"}
    rig.running.linux.collect()
    assert await rig.drift() == []


async def test_where_no_address_is_free_a_new_sandbox_gets_the_one_that_the_old_one_had(rig: Rig) -> None:
    await rig.start({NODE: Node((parse_prefix("10.1.1.0/30"), parse_prefix("fd01::/64")))})
    assert (await attach(rig, rig.space("old"), "s1", uid="u")).error is None
    assert (await attach(rig, rig.space("other"), "s2", pod="q")).refusal is Refusal.EXHAUSTED
    assert (await attach(rig, rig.space("new"), "s3", uid="u")).error is None
    assert addresses(rig)["s3/eth0"][0] == "10.1.1.2"
    rig.running.linux.collect()
    assert await rig.drift() == []


async def test_a_new_sandbox_in_the_same_namespace_gets_the_interface(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    space = rig.space("p")
    assert (await attach(rig, space, "s1", uid="u")).error is None
    assert (await attach(rig, space, "s2", uid="u")).error is None
    assert set(addresses(rig)) == {"sandbox-web/eth0", "s2/eth0"}
    assert ask(space, TO_WEB[1]) == "web fd01::4"
    assert await rig.drift() == []


async def test_a_new_sandbox_that_cannot_be_attached_costs_the_old_one_nothing(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    old, new = rig.space("old"), rig.space("new")
    assert (await attach(rig, old, "s1", uid="u")).error is None
    node = dump()
    sh("ip", "-n", new.name, "link", "add", "eth0", "type", "veth", "peer", "name", "far")
    assert (await attach(rig, new, "s2", uid="u")).error is not None
    rig.running.linux.collect()
    assert dump() == node
    assert ask(old, TO_WEB[0]) == "web 10.1.1.3"


# --- names -------------------------------------------------------------------------------------


async def test_names_that_join_to_the_same_text_are_two(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    spaces = {("k", "b.c"): rig.space("one"), ("k.b", "c"): rig.space("two")}
    for (sandbox, interface), space in spaces.items():
        assert (await attach(rig, space, sandbox, interface, pod=sandbox)).error is None
    for _ in range(2):
        for (sandbox, interface), space in spaces.items():
            assert ask(space, TO_WEB[0]).split()[1] == addresses(rig)[f"{sandbox}/{interface}"][0]
        assert await rig.drift() == []
        await rig.stop()
        lose(rig)
        assert (await rig.start(OBJECTS)).error is None
    await detach(rig, "k", "b.c")
    assert set(addresses(rig)) == {"sandbox-web/eth0", "k.b/c"}


def lose(rig: Rig) -> None:
    for part in rig.directory.glob("podwire.db*"):
        part.unlink()


LONG: Mapping[str, tuple[str, str]] = {
    "a sandbox longer than an altname": ("s" * 200, "p"),
    "as long as may be": ("s" * 1024, "p"),
    "a pod longer than an alias": ("s", "p" * 253),
    "both": ("a.-_" * 100, "p." * 126 + "p"),
    "a sandbox called like a piece": ("pw0123456789ab.s00.x", "p"),
}


@pytest.mark.parametrize(("sandbox", "pod"), LONG.values(), ids=LONG)
async def test_a_lost_store_costs_no_name(rig: Rig, sandbox: str, pod: str) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    space = rig.space("p")
    assert (await attach(rig, space, sandbox, pod=pod)).error is None
    assert await rig.drift() == []
    before = addresses(rig)
    await rig.stop()
    lose(rig)
    assert (await rig.start(OBJECTS)).error is None
    assert addresses(rig) == before
    assert get_interface_name(rig.running.controller.snapshot, "default", pod) is not None
    assert ask(space, TO_WEB[0]) == "web 10.1.1.3"
    await detach(rig, sandbox)
    assert set(addresses(rig)) == {"sandbox-web/eth0"}
    assert await rig.drift() == []


def joined(sandbox: str, interface: str) -> str:
    """The name of a link as older versions made it."""
    return "pw" + hashlib.sha1(f"{sandbox}.{interface}".encode()).hexdigest()[:12]


def forget_names(rig: Rig) -> None:
    """The store as an older version wrote it."""
    for sandbox, interface, value in rig.sql("SELECT sandbox, interface, value FROM attachment"):
        row = msgspec.msgpack.decode(value)
        for name in ("uid", "network", "serial", "link"):
            del row[name]
        old = msgspec.msgpack.encode(row).hex()
        rig.sql(f"UPDATE attachment SET value = x'{old}' WHERE sandbox = '{sandbox}' AND interface = '{interface}'")


async def test_links_of_older_versions_keep_their_names(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """These joined sandbox and interface by a dot, whatever was in them."""
    spaces = {("web", "eth0"): rig.space("w"), ("k", "b.c"): rig.space("k"), ("k.d", "eth0"): rig.space("d")}
    with monkeypatch.context() as older:
        older.setattr(names, "_identity", lambda key: f"{key.sandbox}.{key.interface}")
        await rig.start(OBJECTS)
        for (sandbox, interface), space in spaces.items():
            assert (await attach(rig, space, sandbox, interface, pod=sandbox)).error is None
        forget_names(rig)
        await rig.stop()
    assert (await rig.start(OBJECTS)).error is None
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert await rig.drift() == []
    now = rig.running.controller.snapshot
    for sandbox, interface in spaces:
        assert get_interface_name(now, "default", sandbox) == joined(sandbox, interface)
    respond(spaces["web", "eth0"], "web")
    for key in (("k", "b.c"), ("k.d", "eth0")):
        assert ask(spaces[key], TO_WEB[0]).startswith("web ")
    assert (await attach(rig, rig.space("x"), "k.b", "c", pod="x")).refusal is Refusal.NAMED
    await detach(rig, "k", "b.c")
    assert (await attach(rig, rig.space("x"), "k.b", "c", pod="x")).error is None
    assert await rig.drift() == []
