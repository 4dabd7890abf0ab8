"""All facts of a node, gathered one after the other."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from podwire.cni.install import PLUGIN
from podwire.config import Config, ConfigError, read_config
from podwire.doctor.facts import Agent, Cluster, Facts, NodeFact, Setup
from podwire.doctor.findings import Unseen
from podwire.doctor.read import agent, cluster, filters, kernel, network, others, plugin, settings
from podwire.model.addresses import parse_prefix
from podwire.model.snapshot import Transport
from podwire.version import version

IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in every container, and nobody else does."""


def read(
    config: Path | None, state_dir: Path, bin_dir: Path, conf_dir: Path, environment: Mapping[str, str] = os.environ
) -> Facts:
    """`state_dir` counts where no configuration says another. Raises OSError where not even links can be listed."""
    right, error = _configuration(config, environment)
    container = IN_A_POD in environment
    place = right.state_dir if right is not None else state_dir
    setup = Setup(
        version=version(),
        now=time.time(),
        root=os.geteuid() == 0,
        container=container,
        config=str(config) if config is not None else "",
        error=error,
        node=right.node_name if right is not None else "",
        state_dir=str(place),
        kubernetes=right is not None and right.kubernetes is not None,
        mtu=right.mtu if right is not None else None,
        transport=right.transport if right is not None else Transport.AUTO,
        vxlan=(right.vxlan_vni, right.vxlan_port) if right is not None else (28791, 4789),
        service_cidrs=right.service_cidrs if right is not None else (),
        plugin=str(bin_dir / PLUGIN),
        conf_dir=str(conf_dir),
    )
    asked = agent.read(place)
    if right is None and not error and isinstance(asked, Agent):
        setup = _as_told(setup, asked)
    api, known = cluster.read(right)
    if isinstance(known, Unseen) and isinstance(asked, Agent) and right is None:
        known = _told(asked)
    return Facts(
        setup=setup,
        kernel=kernel.read(container),
        settings=settings.read(container),
        network=network.read(),
        filters=filters.read(),
        others=others.read(container),
        api=api,
        cluster=known,
        cni=plugin.read(bin_dir / PLUGIN, conf_dir, place, container),
        agent=asked,
        disk=agent.disk(place),
    )


def _configuration(config: Path | None, environment: Mapping[str, str]) -> tuple[Config | None, str]:
    if config is None:
        return None, ""
    try:
        return read_config(config, environment), ""
    except ConfigError as error:
        return None, str(error)


def _as_told(setup: Setup, it: Agent) -> Setup:
    return replace(setup, node=it.status.node)


def _told(it: Agent) -> Cluster:
    """What an agent says of its cluster, where no configuration leads to it."""
    blocks = tuple(parse_prefix(block.range) for block in it.status.pod_cidrs)
    pools = {each.pool: () for each in it.status.pools if each.pool}
    return Cluster({it.status.node: NodeFact(blocks, ())}, tuple(map(parse_prefix, it.status.service_cidrs)), pools)
