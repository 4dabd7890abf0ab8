"""What takes Podwire off a node takes all of it, and nothing of anybody else."""

from pathlib import Path

import pytest

from podwire.cli.client import Failed
from podwire.cli.uninstall import uninstall
from podwire.cni.install import configure, install
from podwire.config import read_config
from podwire.preflight import ready
from tests.kernel.rig import Rig, by_hand, dump, service, sh

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
