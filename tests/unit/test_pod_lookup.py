"""From a pod's name to its interfaces; from a new sandbox to the one whose place it takes."""

from typing import Any

import pytest

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.model.objects import AttachmentKey, PodKey
from podwire.model.snapshot import Snapshot
from podwire.pods.lookup import get_interface_name, interfaces_of, replaced
from podwire.pods.names import interface_name
from tests.unit import world

POD = PodKey("shop", "web")


def attached(*adds: tuple[str, str, str]) -> Snapshot:
    """Sandbox, interface and UID of each, in this order; all of one pod."""
    now = world.start()
    for number, (sandbox, interface, uid) in enumerate(adds):
        key = AttachmentKey(sandbox, interface)
        now, _ = fold(now, e.AddPod(key, POD, f"/run/netns/{number}", uid=uid))
    return now


@pytest.mark.parametrize(
    ("adds", "interface", "found"),
    [
        pytest.param((), None, None, id="no such pod"),
        pytest.param((("s", "eth0", ""),), None, ("s", "eth0"), id="its interface"),
        pytest.param((("s", "net7", ""),), None, ("s", "net7"), id="whatever it is called"),
        pytest.param((("s", "net1", ""), ("s", "eth0", "")), None, ("s", "net1"), id="of several the first that came"),
        pytest.param((("s", "eth0", ""), ("s", "net1", "")), "net1", ("s", "net1"), id="by name"),
        pytest.param((("s", "eth0", ""),), "net1", None, id="no such interface"),
        pytest.param((("t", "eth0", "1"), ("s", "eth0", "2")), None, ("s", "eth0"), id="of the newest sandbox"),
        pytest.param((("s", "net1", "1"), ("t", "eth0", "2")), "net1", None, id="of no older sandbox"),
    ],
)
def test_the_interface_of_a_pod(adds: Any, interface: str | None, found: tuple[str, str] | None) -> None:
    name = interface_name(AttachmentKey(*found)) if found is not None else None
    assert get_interface_name(attached(*adds), POD.namespace, POD.name, interface) == name


def test_interfaces_come_in_the_order_of_their_adds() -> None:
    now = attached(("s", "net2", ""), ("s", "eth0", ""), ("s", "net1", ""))
    assert [key.interface for key in interfaces_of(now, POD)] == ["net2", "eth0", "net1"]


@pytest.mark.parametrize(
    ("before", "new", "gone"),
    [
        pytest.param(("s", "eth0", "u"), ("t", "eth0", "u"), True, id="another sandbox of the same pod"),
        pytest.param(("s", "eth0", ""), ("t", "eth0", "u"), True, id="whose UID was not told"),
        pytest.param(("s", "eth0", "u"), ("t", "eth0", ""), True, id="whose UID is not told now"),
        pytest.param(("s", "eth0", "u"), ("t", "eth0", "v"), False, id="the name is another pod's now"),
        pytest.param(("s", "eth0", "u"), ("s", "net1", "u"), False, id="another interface of the same sandbox"),
        pytest.param(("s", "eth0", "u"), ("t", "net1", "u"), False, id="another interface of another sandbox"),
    ],
)
def test_whose_place_a_new_sandbox_takes(before: tuple[str, str, str], new: tuple[str, str, str], gone: bool) -> None:
    old, key = AttachmentKey(*before[:2]), AttachmentKey(*new[:2])
    wanted = frozenset((old,)) if gone else frozenset()
    assert replaced(attached(before), key, POD, new[2]) == wanted
    both = attached(before, new)
    assert replaced(both, key, POD, new[2]) == wanted
    assert replaced(both, old, POD, before[2]) == frozenset()  # a repeated ADD of the older one takes nobody's


def test_without_kubernetes_nobody_is_replaced() -> None:
    now, _ = fold(world.start(), e.AddPod(AttachmentKey("s", "eth0"), PodKey("", "x"), "/s"))
    assert replaced(now, AttachmentKey("t", "eth0"), PodKey("", "x"), "") == frozenset()
