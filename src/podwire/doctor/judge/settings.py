"""Kernel settings that Podwire sets or needs, and what would undo them. Pure.

Rules: Documentation/networking/ip-sysctl (of rp_filter the larger of `all` and the interface counts; forwarding makes
accept_ra 1 deaf), sysctl.d(5).
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from podwire.doctor.facts import Agent, Assignment, Facts
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong
from podwire.model.addresses import IPV6
from podwire.nodes.own import SYSCTLS
from podwire.pods.names import LINK_PREFIX

FULL, NEARLY_FULL = 0.95, 0.75
"""Shares of the connections that may be tracked."""
FORWARDING = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
FEW = 131_072
"""Connections: the least that KubeProxyConntrackConfiguration gives a node."""
TIMEOUTS = tuple(path for path in SYSCTLS if "_timeout_" in path)
REDIRECTS = "net/ipv4/conf/all/send_redirects"


def forwarding(facts: Facts) -> Iterator[Judgement]:
    for path in FORWARDING:
        yield from _wanted(facts, path, "pods' packets are not passed on")
    stopped = sorted(
        name
        for name, it in facts.settings.interfaces.items()
        if it.forwarding == "0" and name not in ("all", "default", "lo") and _carries(facts, name)
    )
    if stopped and facts.settings.values.get(FORWARDING[0]) == "1":
        commands = " ".join(f"net.ipv4.conf.{_dotted(name)}.forwarding=1" for name in stopped)
        yield wrong(f"forwarding is on, but off at {', '.join(stopped)}", f"sysctl -w {commands}")


def redirects(facts: Facts) -> Iterator[Judgement]:
    yield from _wanted(facts, REDIRECTS, "", serious=False)


def conntrack_timeouts(facts: Facts) -> Iterator[Judgement]:
    for path in TIMEOUTS:
        yield from _wanted(facts, path, "", serious=False)


def _wanted(facts: Facts, path: str, harm: str, serious: bool = True) -> Iterator[Judgement]:
    """A setting that the agent makes."""
    wanted, found = SYSCTLS[path], facts.settings.values.get(path)
    name = path.replace("/", ".")
    if found is None:
        yield note(f"{name}: this kernel has no such setting")
    elif found == wanted:
        yield ok(f"{name} = {found}")
    elif not isinstance(facts.agent, Agent):
        yield note(f"{name} = {found}; the agent makes it {wanted} when it starts")
    else:
        seen = f"{name} = {found}, and the agent had made it {wanted}{f': {harm}' if harm else ''}"
        yield (wrong if serious else warning)(seen, f"podwire resync    # or: sysctl -w {name}={wanted}")


def router_advertisements(facts: Facts) -> Iterator[Judgement]:
    """A node whose IPv6 default route comes from its router."""
    forwards = facts.settings.values.get(FORWARDING[1]) == "1"
    learned = sorted({it.link for it in facts.network.routes if it.learned and it.destination.length == 0})
    deaf = [name for name in learned if (it := facts.settings.interfaces.get(name)) is not None and it.accept_ra == "1"]
    if not learned:
        yield ok("no default route comes from router advertisements")
    elif deaf and forwards:
        commands = " ".join(f"net.ipv6.conf.{_dotted(name)}.accept_ra=2" for name in deaf)
        yield warning(
            f"{', '.join(deaf)}: the IPv6 default route is from a router that is no longer listened to "
            "(accept_ra = 1 while forwarding): it will expire",
            f"sysctl -w {commands}",
        )
    elif deaf:
        yield note(f"{', '.join(deaf)}: accept_ra = 1; the agent makes it 2 before it turns forwarding on")
    else:
        yield ok(f"{', '.join(learned)}: router advertisements are heard while forwarding")


def reverse_path(facts: Facts) -> Iterator[Judgement]:
    interfaces = facts.settings.interfaces
    if (common := interfaces.get("all")) is None or common.rp_filter is None:
        yield note("this kernel has no rp_filter")
        return
    loose = sorted(
        name
        for name, it in interfaces.items()
        if name.startswith(LINK_PREFIX) and max(it.rp_filter or "0", common.rp_filter) != "1"
    )
    uplinks = sorted({route.link for route in facts.network.routes if route.destination.length == 0})
    strict = [name for name in uplinks if max(_filter(facts, name), common.rp_filter) == "1"]
    if common.rp_filter == "2":
        yield warning(
            "net.ipv4.conf.all.rp_filter = 2: it overrules the 1 of pods' links, so a pod can send in another's name",
            "sysctl -w net.ipv4.conf.all.rp_filter=0    # the interfaces' own values then count",
        )
    elif loose:
        yield warning(
            f"rp_filter is not 1 at {_some(loose)}: such a pod can send in another's name (systemd sets it anew at "
            "each interface where sysctl.d has net.ipv4.conf.*.rp_filter)",
            "echo 'net.ipv4.conf.pw*.rp_filter = 1' > /etc/sysctl.d/90-podwire.conf; podwire resync",
        )
    elif len(uplinks) > 1 and strict:
        yield warning(
            f"rp_filter is strict at {', '.join(strict)}, and the node has default routes by {', '.join(uplinks)}: "
            "answers that come back by the other one are dropped",
            f"sysctl -w {' '.join(f'net.ipv4.conf.{_dotted(name)}.rp_filter=2' for name in strict)}",
        )
    else:
        yield ok(f"net.ipv4.conf.all.rp_filter = {common.rp_filter}; pods can't send in another's name")


def conntrack(facts: Facts) -> Iterator[Judgement]:
    if facts.settings.tracked is None:
        yield note("connections are not tracked yet: the kernel begins when the rules are loaded")
        return
    count, most = facts.settings.tracked
    seen = f"{count} of {most} connections are tracked"
    fix = f"sysctl -w net.netfilter.nf_conntrack_max={max(most, 1) * 4}"
    if most and count >= FULL * most:
        yield wrong(f"{seen}: new ones are dropped", fix)
    elif most and count >= NEARLY_FULL * most:
        yield warning(f"{seen}: when it is full, new ones are dropped", fix)
    elif most < FEW:
        yield note(f"{seen}: kube-proxy gives a node at least {FEW}", f"sysctl -w net.netfilter.nf_conntrack_max={FEW}")
    else:
        yield ok(seen)


def at_boot(facts: Facts) -> Iterator[Judgement]:
    boot = facts.settings.boot
    if isinstance(boot, Unseen):
        yield unseen(boot)
        return
    against = [judgement for it in boot if (judgement := _against(facts, it)) is not None]
    yield from against or [ok(f"{len(boot)} settings are made at boot, none against Podwire's")]


def _against(facts: Facts, it: Assignment) -> Judgement | None:
    key = it.key.replace("/", ".")
    seen = f"{it.file}: {key} = {it.value}"
    remove = f"remove that line from {it.file}"
    undone = [path for path, value in SYSCTLS.items() if _matches(key, path) and it.value != value]
    if undone:
        return warning(f"{seen}: undoes what the agent sets, at boot and at each `sysctl --system`", remove)
    if _matches(key, "net/ipv4/conf/pw0/rp_filter") and "*" in key and it.value != "1":
        return warning(
            f"{seen}: reaches pods' links too, so a pod can send in another's name",
            "echo 'net.ipv4.conf.pw*.rp_filter = 1' > /etc/sysctl.d/90-podwire.conf; podwire resync",
        )
    if key == "net.ipv4.conf.all.rp_filter" and it.value == "2":
        return warning(f"{seen}: overrules the 1 of pods' links, so a pod can send in another's name", remove)
    if key in ("net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6") and it.value == "1":
        if IPV6 in facts.families:
            return warning(f"{seen}: turns IPv6 off at boot, and the cluster has it", remove)
        return note(f"{seen}: turns IPv6 off at boot")
    return None


def _matches(key: str, path: str) -> bool:
    return fnmatchcase(path.replace("/", "."), key)


def _carries(facts: Facts, name: str) -> bool:
    """Pods' packets: a pod's link, or an interface that leads elsewhere."""
    return name.startswith(LINK_PREFIX) or any(route.link == name for route in facts.network.routes)


def _filter(facts: Facts, name: str) -> str:
    it = facts.settings.interfaces.get(name)
    return (it.rp_filter if it is not None else None) or "0"


def _dotted(name: str) -> str:
    """As sysctl(8) wants it: a dot within a name is written as a slash."""
    return name.replace(".", "/")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
