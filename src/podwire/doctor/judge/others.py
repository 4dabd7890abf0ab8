"""Other networks and proxies on the node: those at work, and what they left behind. Pure.

Invariants: what other software needs for itself is not taken for a leftover: the kubelet's own chains (KUBE-FIREWALL,
KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT) harm nobody, only those that rewrite Services' packets do.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from podwire.doctor.facts import Agent, Facts, Filters
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong

_RESTART = "and restart the node"


class Signs(NamedTuple):
    """How a network is known. Patterns are of whole names; `programs`: of BPF programs."""

    title: str
    processes: tuple[str, ...]
    links: str = r"(?!)"
    chains: str = r"(?!)"
    tables: str = r"(?!)"
    programs: str = ""
    remove: str = ""


NETWORKS = {
    "flannel": Signs(
        "Flannel",
        ("flanneld",),
        r"flannel(-v6)?\.\d+|flannel-wg(-v6)?",
        r"FLANNEL-.*",
        r"flannel-ipv[46]",
        remove="kubectl delete namespace kube-flannel; on the node: ip link del flannel.1; "
        f"rm -f /etc/cni/net.d/10-flannel.conflist; rm -rf /run/flannel; {_RESTART}",
    ),
    "calico": Signs(
        "Calico",
        ("calico-node", "calico-felix"),
        r"cali[0-9a-f]{11}|vxlan(-v6)?\.calico|wireguard\.cali|wg-v6\.cali",
        r"cali-.*",
        r"calico",
        remove="kubectl delete -f the manifest it came by; on the node: "
        f"rm -f /etc/cni/net.d/10-calico.conflist /etc/cni/net.d/calico-kubeconfig; {_RESTART}",
    ),
    "cilium": Signs(
        "Cilium",
        ("cilium-agent",),
        r"cilium_.*|lxc[0-9a-f]{12}|lxc_health",
        r"(OLD_)?CILIUM_.*",
        programs=r"cil_.*",
        remove="cilium uninstall; on the node: cilium-dbg post-uninstall-cleanup -f --all-state; "
        f"rm -f /etc/cni/net.d/05-cilium.conflist; {_RESTART}",
    ),
    "weave": Signs(
        "Weave Net",
        ("weaver",),
        r"weave|vethwe-.*|vxlan-6784|vethwepl.*",
        r"WEAVE(-.*)?",
        remove="kubectl -n kube-system delete daemonset weave-net; on the node: weave reset; "
        f"rm -f /etc/cni/net.d/10-weave.conflist; {_RESTART}",
    ),
    "kube-router": Signs(
        "kube-router",
        ("kube-router",),
        r"kube-bridge|kube-dummy-if|tun-[0-9a-f]{10,}",
        r"KUBE-ROUTER-.*|KUBE-POD-FW-.*|KUBE-NWPLCY-.*",
        remove="kubectl -n kube-system delete daemonset kube-router; on the node: kube-router --cleanup-config; "
        f"rm -f /etc/cni/net.d/10-kuberouter.conflist; {_RESTART}",
    ),
    "antrea": Signs(
        "Antrea",
        ("antrea-agent",),
        r"antrea-(gw|tun|egress)0",
        r"ANTREA-.*",
        r"antrea.*",
        remove=f"kubectl delete -f antrea.yml; on the node: rm -f /etc/cni/net.d/10-antrea.conflist; {_RESTART}",
    ),
    "bridge": Signs(
        "the bridge plugin",
        (),
        r"cni0|cbr0|cni-podman\d+",
        r"CNI-[0-9a-f]{24}|CNI-HOSTPORT-.*",
        remove="ip link del cni0    # once no pod is on it any more",
    ),
}


def network(name: str) -> Callable[[Facts], Iterator[Judgement]]:
    """The check for one of `NETWORKS`."""
    signs = NETWORKS[name]

    def judge(facts: Facts) -> Iterator[Judgement]:
        running = _running(facts, signs.processes)
        left = _left(facts, signs)
        if running:
            yield wrong(f"{signs.title} works on this node: process {', '.join(running)}", signs.remove)
        elif left:
            yield warning(f"{signs.title} has left {'; '.join(left)}", signs.remove)
        elif hidden := _hidden(facts, signs):
            yield note(f"nothing of {signs.title} is seen; not looked into: {'; '.join(hidden)}")
        else:
            yield ok(f"nothing of {signs.title}")

    return judge


def _hidden(facts: Facts, signs: Signs) -> list[str]:
    """Why something may be there all the same."""
    asked: tuple[tuple[object, object], ...] = (
        (True, facts.filters),
        (signs.processes, facts.others.processes),
        (signs.programs, facts.others.programs),
    )
    return [it.why for wanted, it in asked if wanted and isinstance(it, Unseen)]


def _running(facts: Facts, names: tuple[str, ...]) -> list[str]:
    there = facts.others.processes
    return [] if isinstance(there, Unseen) else sorted(there & {name[:15] for name in names})


def _left(facts: Facts, signs: Signs) -> list[str]:
    links = [link.name for link in facts.network.links if re.fullmatch(signs.links, link.name)]
    found = [f"interface {_some(links)}"] if links else []
    filters = facts.filters
    if isinstance(filters, Filters):
        tables = [table for table in filters.tables if re.fullmatch(signs.tables, table.partition(" ")[2])]
        chains = [name for name in _chain_names(filters) if re.fullmatch(signs.chains, name)]
        found += [f"nftables table {_some(tables)}"] if tables else []
        found += [f"chain {_some(chains)}"] if chains else []
    programs = facts.others.programs
    if not isinstance(programs, Unseen):
        loaded = [it for it in programs if re.fullmatch(signs.programs, it.rpartition(" ")[2])]
        found += [f"BPF program at {_some(loaded)}"] if loaded else []
    return found


# --- kube-proxy --------------------------------------------------------------------------------

_SERVICE_CHAINS = r"KUBE-SERVICES|KUBE-NODEPORTS|KUBE-SVC-.*|KUBE-SEP-.*|KUBE-EXT-.*|KUBE-EXTERNAL-SERVICES"
_STOP = "kubectl -n kube-system delete daemonset kube-proxy"


def kube_proxy(facts: Facts) -> Iterator[Judgement]:
    running = _running(facts, ("kube-proxy",))
    if running:
        yield wrong("kube-proxy works on this node: both would answer for Services", f"{_STOP}; then restart the node")
    elif facts.others.health:
        yield wrong(f"something answers as kube-proxy does: {facts.others.health}", f"{_STOP}; ss -ltnp sport = :10256")
    elif isinstance(facts.others.processes, Unseen):
        yield note(f"nothing answers at kube-proxy's health port; processes: {facts.others.processes.why}")
    else:
        yield ok("kube-proxy does not run")


def kube_proxy_rules(facts: Facts) -> Iterator[Judgement]:
    filters = facts.filters
    if isinstance(filters, Unseen):
        yield unseen(filters)
        return
    tables = [table for table in filters.tables if table.partition(" ")[2] == "kube-proxy"]
    chains = [name for name in _chain_names(filters) if re.fullmatch(_SERVICE_CHAINS, name)]
    found: list[tuple[str, str]] = []
    if tables:
        found.append((f"nftables table {_some(tables)}", "; ".join(f"nft delete table {table}" for table in tables)))
    if chains:
        clean = "kube-proxy --cleanup    # or: iptables-save | grep -v KUBE | iptables-restore; also with ip6tables"
        found.append((f"chains {_some(chains)}", clean))
    if facts.others.ipvs:
        found.append((f"{facts.others.ipvs} IPVS services", "ipvsadm -C; ip link del kube-ipvs0"))
    for what, fix in found:
        yield wrong(f"kube-proxy's {what}: its rules answer for Services before Podwire's", fix)
    if not found:
        yield ok("no rules of kube-proxy")
    if isinstance(filters.legacy, Unseen):
        yield note(f"iptables' old tables: {filters.legacy.why}", "iptables-legacy-save | grep KUBE-SVC")


def link_managers(facts: Facts) -> Iterator[Judgement]:
    """Programs that manage the node's links and may take ours for theirs."""
    processes = facts.others.processes
    if isinstance(processes, Unseen):
        yield unseen(processes)
        return
    networkd, manager = "systemd-network" in processes, "NetworkManager" in processes
    if networkd and not facts.others.keeps_routes:
        yield warning(
            "systemd-networkd works here and may remove routes that it did not make, Podwire's among them, when it "
            "restarts or an interface comes back",
            "mkdir -p /etc/systemd/networkd.conf.d; printf '[Network]\\nManageForeignRoutes=no\\n"
            "ManageForeignRoutingPolicyRules=no\\n' > /etc/systemd/networkd.conf.d/podwire.conf; "
            "systemctl restart systemd-networkd",
        )
    if manager:
        yield note(
            "NetworkManager works here; it leaves veth links alone unless it is told otherwise",
            "printf '[keyfile]\\nunmanaged-devices=interface-name:pw*\\n' > /etc/NetworkManager/conf.d/podwire.conf; "
            "nmcli general reload",
        )
    if not manager and not (networkd and not facts.others.keeps_routes):
        yield ok("nobody else manages links and routes" if not networkd else "systemd-networkd keeps others' routes")


def rules_in_kernel(facts: Facts) -> Iterator[Judgement]:
    """Podwire's own tables: their layout is of this version."""
    filters = facts.filters
    if isinstance(filters, Unseen):
        yield unseen(filters)
        return
    for family, sealed in sorted(filters.sealed.items()):
        if sealed:
            yield ok(f"the {family} table is of this version's layout")
        elif sealed is None and isinstance(facts.agent, Agent):
            yield wrong(f"the {family} table is missing, and the agent works", "podwire resync")
        elif sealed is None:
            yield note(f"there is no {family} table yet: the agent makes it")
        elif isinstance(facts.agent, Agent) and facts.agent.status.version == facts.setup.version:
            yield wrong(f"the {family} table has other rules than the agent loaded", "podwire resync")
        else:
            yield note(f"the {family} table has another layout than this version's; the next agent renews it")


def _chain_names(filters: Filters) -> list[str]:
    legacy = () if isinstance(filters.legacy, Unseen) else filters.legacy
    return sorted({chain.name for chain in (*filters.chains, *legacy)})


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
