"""What the doctor reads of files and other programs' listings: sysctl.d, networkd, the plugin, iptables-save."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.install import configure, install
from podwire.doctor.facts import NATIVE, Chain, Conflist, Plugin
from podwire.doctor.findings import Unseen
from podwire.doctor.judge.firewall import fate
from podwire.doctor.read import plugin
from podwire.doctor.read.iptables import parse_save
from podwire.doctor.read.others import keeps_foreign_routes
from podwire.doctor.read.settings import assignments, boot
from podwire.model.addresses import parse_prefix
from tests.unit.doctor_facts import chain
from tests.unit.shims import KINDS, native

# --- sysctl.d ----------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_of_the_lines_for_one_key_the_last_counts_by_the_names_of_the_files(tmp_path: Path) -> None:
    etc, usr, last = tmp_path / "etc", tmp_path / "usr", tmp_path / "sysctl.conf"
    write(usr / "50-a.conf", "net.ipv4.ip_forward = 0\nkernel.x=1\n")
    write(etc / "10-b.conf", "net.ipv4.ip_forward=1\n")
    found = boot((etc, usr), last)
    assert not isinstance(found, Unseen)
    assert [(Path(it.file).name, it.key, it.value) for it in found] == [
        ("50-a.conf", "net.ipv4.ip_forward", "0"),
        ("50-a.conf", "kernel.x", "1"),
    ]


def test_a_file_in_etc_stands_in_the_place_of_that_name_elsewhere(tmp_path: Path) -> None:
    etc, usr = tmp_path / "etc", tmp_path / "usr"
    write(usr / "50-a.conf", "net.ipv4.ip_forward = 0\n")
    write(etc / "50-a.conf", "# nothing\n")
    assert boot((etc, usr), tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("net.ipv4.ip_forward=1", [("net.ipv4.ip_forward", "1")]),
        ("  - net/ipv4/conf/eth0.5/rp_filter = 2 ", [("net.ipv4.conf.eth0/5.rp_filter", "2")]),
        ("net.ipv4.conf.eth0/5.rp_filter=2", [("net.ipv4.conf.eth0/5.rp_filter", "2")]),
        ("kernel.printk = 4  4 1\t7", [("kernel.printk", "4 4 1 7")]),
        ("# net.ipv4.ip_forward=0", []),
        ("; net.ipv4.ip_forward=0", []),
        ("-net.ipv4.conf.all.rp_filter", []),
    ],
)
def test_lines_of_sysctl_d(line: str, read: list[tuple[str, str]]) -> None:
    assert assignments(line) == read


# --- systemd-networkd --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "keeps"),
    [
        ({}, None),
        ({"etc/networkd.conf": "[Network]\n#ManageForeignRoutes=no\n"}, None),
        ({"etc/networkd.conf": "[Network]\nManageForeignRoutes=no\n"}, True),
        ({"etc/networkd.conf": "[Network]\nManageForeignRoutes = yes\n"}, False),
        (
            {
                "etc/networkd.conf": "[Network]\nManageForeignRoutes=yes\n",
                "usr/networkd.conf.d/9.conf": "[Network]\nManageForeignRoutes=no\n",
            },
            True,
        ),
    ],
    ids=["nothing", "a comment", "no", "yes", "a drop-in counts after the file"],
)
def test_whether_networkd_keeps_foreign_routes(tmp_path: Path, files: dict[str, str], keeps: bool | None) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    assert keeps_foreign_routes((tmp_path / "etc", tmp_path / "usr")) is keeps


# --- the plugin --------------------------------------------------------------------------------


def look(root: Path, container: bool = False) -> tuple[Plugin | Unseen, tuple[Conflist, ...] | Unseen | None]:
    found = plugin.read(root / "bin" / "podwire", root / "net.d", root / "state", container)
    return found.plugin, found.conflists


@pytest.mark.parametrize("kind", KINDS)
def test_an_installation_is_seen_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    built = native() if kind == NATIVE else None
    monkeypatch.setattr(plugin, "native_plugin", lambda: built)
    paths = (tmp_path / "state/cni.sock", tmp_path / "state/spool", tmp_path / "state/ready")
    install(tmp_path / "bin", *paths, native=built)
    configure(tmp_path / "net.d")
    files, conflists = look(tmp_path)
    assert isinstance(files, Plugin)
    assert (files.there, files.executable, files.missing, files.same, files.error) == (True, True, (), True, "")
    assert files.interpreter == NATIVE if built else files.interpreter.endswith("/python3")
    assert files.socket == str(tmp_path / "state/cni.sock")
    assert conflists == (Conflist("10-podwire.conflist", ("podwire",)),)


@pytest.mark.parametrize(
    ("installed", "here", "same"),
    [
        (True, False, True),
        (False, True, False),
        (True, True, True),
    ],
    ids=["native, and we have none", "in Python, and we have a native one", "the same native one"],
)
def test_whether_it_is_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, here: bool, same: bool
) -> None:
    monkeypatch.setattr(plugin, "native_plugin", lambda: native() if here else None)
    install(tmp_path / "bin", tmp_path / "s", tmp_path / "p", tmp_path / "r", native=native() if installed else None)
    files, _ = look(tmp_path)
    assert isinstance(files, Plugin)
    assert files.same == same


def test_what_an_installation_has_lost_is_named(tmp_path: Path) -> None:
    made = install(tmp_path / "bin", tmp_path / "s", tmp_path / "p", tmp_path / "r", "/no/such/python3")
    (tmp_path / "bin/podwire.py").unlink()
    made.chmod(0o644)
    (tmp_path / "bin/podwire.conf").write_text("socket=relative\n")
    files, _ = look(tmp_path)
    assert isinstance(files, Plugin)
    assert (files.executable, files.interpreter, files.missing, files.same) == (False, "", ("podwire.py",), False)
    assert "expected a line socket=/PATH" in files.error


def test_nothing_is_nothing_and_in_a_container_unseen(tmp_path: Path) -> None:
    assert look(tmp_path) == (Plugin(False, loopback=False), None)
    files, conflists = look(tmp_path, container=True)
    assert isinstance(files, Unseen)
    assert isinstance(conflists, Unseen)


@pytest.mark.parametrize(
    ("name", "text", "types", "error"),
    [
        ("a.conflist", '{"name": "n", "plugins": [{"type": "x"}, {"type": "y"}]}', ("x", "y"), ""),
        ("a.conf", '{"name": "n", "type": "x"}', ("x",), ""),
        ("a.conflist", "{", (), "no JSON (line 1"),
        ("a.conflist", '{"name": "n"}', (), 'without "plugins"'),
        ("a.conflist", '{"plugins": [{"type": "x"}]}', ("x",), 'without a "name"'),
        ("a.conflist", "[]", (), 'without "plugins"'),
        ("a.conflist", "\xff", (), "not UTF-8"),
    ],
)
def test_network_configurations(tmp_path: Path, name: str, text: str, types: tuple[str, ...], error: str) -> None:
    write(tmp_path / "net.d" / "ignored.txt", "no")
    (tmp_path / "net.d" / name).write_bytes(text.encode("latin-1"))
    _, conflists = look(tmp_path)
    assert isinstance(conflists, tuple)
    assert [(it.name, it.types) for it in conflists] == [(name, types)]
    assert error in conflists[0].error
    assert bool(error) == bool(conflists[0].error)


def test_the_spool_is_counted(tmp_path: Path) -> None:
    for name in ("1-2.del", "2-2.del", "3-2.bad", "4-2.tmp"):
        write(tmp_path / "state/spool" / name, "")
    assert plugin.read(tmp_path / "p", tmp_path / "c", tmp_path / "state", False).spool == (2, 1)


# --- iptables ----------------------------------------------------------------------------------

SAVED = """\
# Generated by iptables-save
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [12:720]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -s 10.1.0.0/16 -m comment --comment "pods, of course" -j ACCEPT
-A FORWARD -d 10.1.0.0/16 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
"""


def test_a_listing_of_iptables_save() -> None:
    assert parse_save(SAVED, "ip", "legacy:filter") == [
        Chain("ip", "legacy:filter", "INPUT", "", "accept"),
        chain(
            *("ip", "legacy:filter", "FORWARD", "drop"),
            "jump DOCKER-USER",
            "out docker0, other, other, other, other: accept",
            "in docker0, other: accept",
            "from 10.1.0.0/16: accept",
            "to 10.1.0.0/16: accept",
        ),
        chain("ip", "legacy:filter", "DOCKER-USER", "", "return"),
    ]


# --- what becomes of a pod's packet ------------------------------------------------------------

BLOCK = [parse_prefix("10.1.1.0/24")]


@pytest.mark.parametrize(
    ("rules", "into", "out"),
    [
        ([], "drop", "drop"),
        (["in pw*: accept"], "accept", "drop"),
        (["out pw*: accept"], "drop", "accept"),
        (["in p*: accept", "out *: accept"], "accept", "accept"),
        (["in pw01*: accept"], "drop", "drop"),
        (["in eth0: accept", "other: accept"], "drop", "drop"),
        (["other: drop", "accept"], "accept", "accept"),
        (["from 10.1.0.0/16: accept", "to 10.1.1.0/24: accept"], "accept", "accept"),
        (["from 10.1.1.0/25: accept", "to 10.2.0.0/16: accept"], "drop", "drop"),
        (["in pw*, other: accept"], "drop", "drop"),
        (["family ip6: accept", "family ip, in pw*: accept"], "accept", "drop"),
        (["reject", "accept"], "reject", "reject"),
        (["jump open"], "accept", "drop"),
        (["goto back", "accept"], "drop", "drop"),
        (["jump back", "accept"], "accept", "accept"),
        (["jump nowhere", "accept"], "accept", "accept"),
        (["jump loop", "accept"], "accept", "accept"),
    ],
)
def test_what_becomes_of_a_packet(rules: list[str], into: str, out: str) -> None:
    chains = [
        chain("ip", "t", "f", "drop", *rules),
        chain("ip", "t", "open", "", "in pw*: accept"),
        chain("ip", "t", "back", "", "other: accept", "return", "accept"),
        chain("ip", "t", "loop", "", "jump loop"),
    ]
    places = {(it.family, it.table, it.name): it for it in chains}
    assert [fate(places, chains[0], way, 4, BLOCK) for way in ("in", "out")] == [into, out]


@given(st.text(max_size=300))
def test_no_listing_breaks_the_reader(text: str) -> None:
    lines = "\n".join(f"-A FORWARD {line}" for line in text.splitlines())
    for found in parse_save(f":FORWARD DROP [0:0]\n{lines}", "ip", "t"):
        assert isinstance(found, Chain)
