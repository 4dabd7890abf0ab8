"""All checks: an explicit list, with the words that don't depend on a node. Pure.

Invariants: every check says something of every node, if only that it could not look; docs/doctor.md is made from here.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from podwire.doctor.facts import Facts
from podwire.doctor.findings import Finding, Judgement, Report, report
from podwire.doctor.judge import agent, api, firewall, kernel, node, others, plugin, settings


class Check(Struct, frozen=True):
    """`looks`: at what, `why`: what goes wrong without; both for people."""

    group: str
    name: str
    looks: str
    why: str
    judge: Callable[[Facts], Iterator[Judgement]]


_CAUGHT = "two networks on one node answer for the same pods and Services, and the older one's routes and rules win"

CHECKS = (
    # --- the kernel ------------------------------------------------------------------------------
    Check(
        "The kernel",
        "kernel-release",
        "The kernel's release: 5.0 for marks on neighbours, 5.5 for second names of links, 5.10 for comments on "
        "nftables chains, 5.18 for marks on addresses; and 6.17, since when no lookup misses what a commit replaces.",
        "a restarted agent recognises its own objects by marks that older kernels don't keep; before 6.17 (or a "
        "distribution's kernel with its mending, b2f742c846ca) a new connection is refused where two lookups in a row "
        "each meet a commit that replaces what they look for",
        kernel.release,
    ),
    Check(
        "The kernel",
        "kernel-marks",
        "A link, addresses, routes and neighbours, made in an empty namespace and read back.",
        "a restarted agent recognises its own objects by their marks",
        kernel.marks,
    ),
    Check(
        "The kernel",
        "capabilities",
        "The capabilities of this process, which are the agent's where it runs in the agent's container.",
        "the agent makes links and rules (CAP_NET_ADMIN) and enters pods' namespaces (CAP_SYS_ADMIN)",
        kernel.capabilities,
    ),
    Check(
        "The kernel",
        "libnftables",
        "Whether the library libnftables.so.1 can be loaded.",
        "the agent loads its constant rules with it",
        kernel.library,
    ),
    Check(
        "The kernel",
        "nftables-rules",
        "Podwire's own constant rules of both families, loaded in an empty namespace.",
        "Services are these rules",
        kernel.rules,
    ),
    Check(
        "The kernel",
        "conntrack-nat",
        "NAT in both directions, loaded in an empty namespace.",
        "a Service's address is rewritten to a pod's, and the answer back",
        kernel.nat,
    ),
    Check("The kernel", "veth", "A veth pair, made in an empty namespace.", "each pod has one", kernel.veth),
    Check(
        "The kernel",
        "vxlan",
        "A VXLAN interface, made in an empty namespace.",
        "pods of nodes on another link are reached by it",
        kernel.vxlan,
    ),
    Check(
        "The kernel",
        "ipv6",
        "Whether the kernel has IPv6, and whether it is on, against the families of the cluster.",
        "the agent does not start on a kernel without IPv6; pods of a cluster with IPv6 have such addresses",
        kernel.ipv6,
    ),
    Check(
        "The kernel",
        "python",
        "A Python 3.11 or later in the node's /usr/bin, where this installation has no native CNI plugin.",
        "the container runtime executes the other plugin with it",
        kernel.python,
    ),
    # --- settings --------------------------------------------------------------------------------
    Check(
        "Kernel settings",
        "forwarding",
        "net.ipv4.ip_forward and net.ipv6.conf.all.forwarding, and interfaces where it is off.",
        "a node passes its pods' packets on",
        settings.forwarding,
    ),
    Check(
        "Kernel settings",
        "send-redirects",
        "net.ipv4.conf.all.send_redirects.",
        "a pod must not be told a shorter way that only the node has",
        settings.redirects,
    ),
    Check(
        "Kernel settings",
        "router-advertisements",
        "accept_ra where an IPv6 default route was learned, against forwarding.",
        "a kernel that forwards is deaf to routers unless accept_ra is 2, and loses its default route",
        settings.router_advertisements,
    ),
    Check(
        "Kernel settings",
        "reverse-path-filter",
        "rp_filter of all, of pods' links and of the interfaces with a default route.",
        "it keeps a pod from sending in another's name; strict at several uplinks it drops answers",
        settings.reverse_path,
    ),
    Check(
        "Kernel settings",
        "conntrack-full",
        "Connections that are tracked, and how many may be.",
        "in a full table new connections get lost, at times and without a word",
        settings.conntrack,
    ),
    Check(
        "Kernel settings",
        "conntrack-timeouts",
        "net.netfilter.nf_conntrack_tcp_timeout_established and …_close_wait.",
        "a TCP connection that rests must not be forgotten earlier than under kube-proxy",
        settings.conntrack_timeouts,
    ),
    Check(
        "Kernel settings",
        "settings-at-boot",
        "The lines of sysctl.d(5) that are in force at boot, against what Podwire sets.",
        "systemd sets them at boot, at each `sysctl --system`, and some at each new interface",
        settings.at_boot,
    ),
    # --- others ----------------------------------------------------------------------------------
    *(
        Check(
            "Other networks",
            f"other-{name}",
            f"{signs.title}: its process, interfaces, nftables tables, iptables chains and BPF programs.",
            _CAUGHT,
            others.network(name),
        )
        for name, signs in others.NETWORKS.items()
    ),
    Check(
        "Other networks",
        "kube-proxy",
        "kube-proxy's process, and its health port 10256.",
        "both would rewrite the same Services' packets",
        others.kube_proxy,
    ),
    Check(
        "Other networks",
        "kube-proxy-rules",
        "kube-proxy's nftables table, iptables chains (in both forms) and IPVS services.",
        "they outlive kube-proxy, and send connections to pods that are gone",
        others.kube_proxy_rules,
    ),
    Check(
        "Other networks",
        "forward-firewall",
        "Each chain at forward that is not Podwire's, followed as the kernel does: Docker's, ufw's, firewalld's and "
        "the administrator's.",
        "every packet between a pod and anything but its own node is forwarded",
        firewall.forward,
    ),
    Check(
        "Other networks",
        "link-managers",
        "systemd-networkd and NetworkManager.",
        "they may take away links and routes that they did not make",
        others.link_managers,
    ),
    # --- the API ---------------------------------------------------------------------------------
    Check(
        "The cluster",
        "configuration",
        "The agent's configuration file.",
        "without it the agent does not start",
        api.configuration,
    ),
    Check(
        "The cluster",
        "api-servers",
        "Each address of the API, asked as the agent does.",
        "the agent learns of pods' addresses and Services from the API; what is there works on without it",
        api.servers,
    ),
    Check(
        "The cluster",
        "api-certificate",
        "The end of each server's certificate, and of our own.",
        "with one that has ended the API can't be asked",
        api.certificate,
    ),
    Check(
        "The cluster",
        "clock",
        "The node's clock against the servers'.",
        "certificates and tokens are valid for a time",
        api.clock,
    ),
    Check(
        "The cluster",
        "api-rights",
        "What deploy/podwire.yaml grants, asked by SelfSubjectAccessReview.",
        "the agent lists and watches these objects",
        api.rights,
    ),
    Check(
        "The cluster",
        "node-object",
        "This node's object: its name, podCIDRs or pools, and addresses.",
        "pods' addresses come from there",
        api.node,
    ),
    Check(
        "The cluster",
        "range-overlap",
        "Pods', pools' and Services' ranges, those of other nodes, addresses of nodes, and routes of others.",
        "an address that is two things is reached as one of them only",
        node.overlaps,
    ),
    # --- the node's network ----------------------------------------------------------------------
    Check(
        "The node's network",
        "default-route",
        "The default route.",
        "pods reach the world by it, and where the node's address is on no interface their MTU comes from it",
        node.uplink,
    ),
    Check(
        "The node's network",
        "mtu",
        "The MTU of the interface with the node's address against that of pods.",
        "larger packets than the way takes hang, while small ones pass",
        node.mtu,
    ),
    Check(
        "The node's network",
        "vxlan-port",
        "VXLAN interfaces of others: their VNI and UDP port.",
        "the kernel makes no second one with the same two, and pods of nodes on another link need one",
        node.vxlan_port,
    ),
    # --- CNI -------------------------------------------------------------------------------------
    Check(
        "The CNI plugin",
        "cni-plugin",
        "The executable, what belongs beside it, and its Python.",
        "the container runtime executes it for each pod",
        plugin.executable,
    ),
    Check(
        "The CNI plugin",
        "cni-settings",
        "The file `<plugin>.conf`, and whether its socket is the agent's.",
        "the plugin finds the agent by it",
        plugin.settings,
    ),
    Check(
        "The CNI plugin",
        "cni-loopback",
        "The plugin `loopback` beside it.",
        "older container runtimes execute it for every pod, and fail without it",
        plugin.loopback,
    ),
    Check(
        "The CNI plugin",
        "cni-configuration",
        "The runtime's directory of network configurations: which one is in force.",
        "the first by name decides which network new pods get",
        plugin.configuration,
    ),
    Check(
        "The CNI plugin",
        "cni-socket",
        "VERSION and STATUS, asked at the agent's socket as the plugin does.",
        "a runtime takes the node for not ready as long as STATUS fails",
        plugin.socket,
    ),
    Check(
        "The CNI plugin",
        "cni-spool",
        "DELs that the plugin left while no agent answered.",
        "addresses of pods that are gone stay taken until the agent has seen their DEL",
        plugin.spool,
    ),
    # --- the agent -------------------------------------------------------------------------------
    Check(
        "The agent",
        "agent",
        "Whether an agent answers on its admin socket.",
        "what is there works on without it, but no pod comes and no Service changes",
        agent.running,
    ),
    Check("The agent", "agent-ready", "Whether it can attach pods.", "pods wait until it is", agent.ready),
    Check(
        "The agent",
        "agent-version",
        "Its version against this command's.",
        "answers of another version may read wrongly",
        agent.version,
    ),
    Check(
        "The agent",
        "agent-errors",
        "Its sources' errors, drivers' failures, and events that failed.",
        "what could not be read or written is not in the network",
        agent.errors,
    ),
    Check(
        "The agent",
        "agent-drift",
        "`podwire verify`.",
        "what others changed is not what the cluster says",
        agent.drift,
    ),
    Check(
        "The agent",
        "rules-layout",
        "Podwire's own tables in the kernel, against this version's rules.",
        "Services are these rules",
        others.rules_in_kernel,
    ),
    Check(
        "The agent",
        "state-directory",
        "The disk of the state directory.",
        "an attachment is written down before it is made",
        node.state_directory,
    ),
)


def examine(facts: Facts) -> Report:
    """All findings, in the order of the checks."""
    findings = (
        Finding(check.name, judgement.state, judgement.seen, check.why, judgement.fix)
        for check in CHECKS
        for judgement in check.judge(facts)
    )
    return report(facts.setup.node, facts.setup.version, findings)
