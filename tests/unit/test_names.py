"""Names of links: no two attachments share one, and from what a link is called its attachment is known again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.request import check_interface, check_sandbox
from podwire.model.objects import Attachment, AttachmentKey, PodKey
from podwire.pods.names import (
    ALTNAME_BYTES,
    MOST_SANDBOX,
    altnames,
    interface_name,
    link_by,
    link_of,
    owner_of,
    pod_of,
)

NAMES = ("a", "a.b", "a.b.c", "b", "b.c", "c", "x" * 200, "x" * 200 + ".b", "pw0123456789ab.s00.x")
sandboxes = st.sampled_from(NAMES) | st.from_regex(r"[a-z0-9][a-z0-9_.\-]{0,200}", fullmatch=True)
interfaces = st.sampled_from(("b", "c", "b.c", "eth0", "eth0.5", "ü.ü", "a-b")) | st.from_regex(
    r"[a-zäß.\-]{1,7}", fullmatch=True
).filter(lambda name: name not in {".", ".."})
keys = st.builds(AttachmentKey, sandboxes, interfaces)
pods = st.builds(PodKey, st.text("abc-", min_size=1, max_size=63), st.text("abc.-", min_size=1, max_size=253))


def attached(key: AttachmentKey, pod: PodKey, older: bool = False) -> Attachment:
    return Attachment(pod, "/n", (), 7, link="" if older else interface_name(key))


@given(keys, keys)
def test_no_two_attachments_share_a_name(one: AttachmentKey, other: AttachmentKey) -> None:
    check_sandbox(one.sandbox)
    check_interface(one.interface)
    assert (interface_name(one) == interface_name(other)) == (one == other)


@given(keys, pods)
def test_an_attachment_is_known_by_its_links_names(key: AttachmentKey, pod: PodKey) -> None:
    it = attached(key, pod)
    link, names = link_of(key, it), altnames(key, it)
    assert {link_by(name) for name in names} == {link}
    assert all(0 < len(name.encode()) <= ALTNAME_BYTES for name in names)
    alias = f"{pod.namespace}/{pod.name}"
    assert owner_of(link, (*names, "somebody.else", "else")) == key
    assert pod_of(alias if len(alias) <= 255 else f"{alias[:246]}~01234567", names) == pod


@given(keys, pods)
def test_links_of_older_versions_keep_their_names(key: AttachmentKey, pod: PodKey) -> None:
    """Which were joined by a dot, whatever is in them."""
    old = attached(key, pod, older=True)
    link, names = link_of(key, old), altnames(key, old)
    assert (link == interface_name(key)) == ("." not in key.interface)
    joined = f"{key.sandbox}.{key.interface}"
    if len(joined.encode()) <= ALTNAME_BYTES and link_by(joined) == link:  # else it reads like a piece of a name
        assert joined in names
    found = owner_of(link, names)
    assert found is not None
    assert f"{found.sandbox}.{found.interface}" == f"{key.sandbox}.{key.interface}"


@pytest.mark.parametrize("names", [(), ("somebody.else",), ("pw0123456789ab.long",), ("pw0123456789ab.s01.c.eth0",)])
def test_whose_a_link_is_is_never_guessed(names: tuple[str, ...]) -> None:
    assert owner_of("pw0123456789ab", names) is None
    assert pod_of("nobody", names) is None


def test_the_longest_sandbox_has_few_names() -> None:
    """The kernel tells all of a link's names in one message of a page or two."""
    key = AttachmentKey("s" * MOST_SANDBOX, "ä" * 7)
    assert sum(len(name.encode()) + 5 for name in altnames(key, attached(key, PodKey("n" * 63, "p" * 253)))) < 2048
