"""What takes Podwire off a node takes all of it, and nothing of anybody else."""

import asyncio
import os
from pathlib import Path

import pytest

from podwire.bgp.daemons import Daemons
from podwire.cli.client import Failed
from podwire.cli.uninstall import uninstall
from podwire.cni.install import configure, install
from podwire.config import read_config
from podwire.preflight import ready
from tests.kernel.rig import Rig, Space, by_hand, dump, service, sh

FOREIGN = (
    "nft add table ip foreign",
    "nft add table inet podwire",
    "ip link set lo up",
    "ip link add pwbridge type bridge",
    "ip address add 10.9.9.9/32 dev lo",
    "ip route add 10.8.0.0/16 dev lo",
)


def seen() -> str:
    parts = (sh("nft", "list", "ruleset"), sh("ip", "-o", "link"), sh("ip", "address"), sh("ip", "route"))
    return "\n".join((*parts, sh("ip", "-6", "route"), sh("ip", "neigh", "show", "nud", "permanent")))


async def test_all_of_ours_goes_and_nothing_else(rig: Rig, tmp_path: Path) -> None:
    for line in FOREIGN:
        by_hand(line)
    before = seen()
    config = tmp_path / "agent.toml"
    config.write_text(f'node_name = "one"\nstate_dir = "{rig.directory}"\n')
    right = read_config(config)
    bin_dir, conf_dir = tmp_path / "bin", tmp_path / "net.d"
    install(bin_dir, right.cni_socket, right.spool, right.ready_mark)
    configure(conf_dir)
    (bin_dir / "bridge").write_text("another's")
    await rig.start_with_pods("a", "b", objects=service("s", 10, ("10.1.1.2",)))
    await rig.stop()
    held = dump()

    def run(with_pods: bool) -> None:
        uninstall(config=config, bin_dir=bin_dir, conf_dir=conf_dir, with_pods=with_pods)

    with ready(right), pytest.raises(Failed, match="another agent"):
        run(with_pods=True)
    with pytest.raises(Failed, match=r"2 pods are attached .*drain the node first"):
        run(with_pods=False)
    assert dump() == held
    run(with_pods=True)
    assert seen() == before
    assert [path.name for path in bin_dir.iterdir()] == ["bridge"]
    assert list(conf_dir.iterdir()) == []
    assert sorted(path.name for path in rig.directory.iterdir()) == ["agent.toml", "bin", "net.d"]
    run(with_pods=False)  # again: there is nothing to do
    assert seen() == before


LEFT = [
    "podwire.db", "podwire.db-wal", "podwire.db-shm", "podwire.db.damaged-1", "podwire.db.damaged-2-wal",
    "cni.sock", "admin.sock", "ready", ".ready", ".ready.7", "counts", ".counts", ".counts.7", "lock",
    "spool/00000000000000000001-7.del", "spool/00000000000000000001-7.del.bad", "spool/00000000000000000001-7.tmp",
    *(f"frr/{name}{end}" for name in ("zebra", "bfdd", "bgpd") for end in (".conf", ".pid", ".vty")), "frr/.bgpd.conf",
    "frr/bfdd.sock", "frr/zserv.api",
    "leases/da39a3ee.lease", "leases/da39a3ee.lease.bad", "leases/da39a3ee.tmp", "leases/da39a3ee.answer",
]  # fmt: skip
"""All that an agent, FRR or a plugin may leave in the state directory, wherever it is killed."""


def uninstalled(directory: Path, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'node_name = "one"\nstate_dir = "{directory}"\n')
    uninstall(config=config, bin_dir=tmp_path / "bin", conf_dir=tmp_path / "net.d")


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("left", LEFT)
def test_whatever_was_left_the_state_directory_goes(tmp_path: Path, left: str) -> None:
    path = tmp_path / "state" / left
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    uninstalled(tmp_path / "state", tmp_path)
    assert not (tmp_path / "state").exists()


async def test_nothing_goes_while_frr_announces(node: Space, open_path: Path, tmp_path: Path) -> None:
    state = open_path / "state"
    with (tmp_path / "log").open("ab") as log:
        frr = Daemons(state / "frr", output=log, inside=("ip", "netns", "exec", node.name))
        running = asyncio.create_task(frr.run())
        await asyncio.wait_for(frr.started["bgpd"].wait(), 20)
        with pytest.raises(Failed, match="FRR's zebra still tells routers the way to this node"):
            uninstalled(state, tmp_path)
        running.cancel()
        await asyncio.wait([running])
    assert "bgpd.conf" in os.listdir(state / "frr")
    uninstalled(state, tmp_path)
    assert os.listdir(open_path) == []


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("kept", ["notes", "spool/notes/a", "leases/notes/a", "ready/a", "frr/notes"])
def test_what_somebody_else_has_put_there_stays(tmp_path: Path, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    (state / kept).parent.mkdir(parents=True)
    for name in ("podwire.db", kept):
        (state / name).write_bytes(b"")
    uninstalled(state, tmp_path)
    assert [path for path in state.rglob("*") if path.is_file()] == [state / kept]
    directory = (state / kept).parent
    assert (
        directory in (state, state / "frr")
        or f"{directory}: kept: a directory is not Podwire's" in capsys.readouterr().out
    )
