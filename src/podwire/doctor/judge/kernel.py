"""The kernel and what this process may do with it. Pure.

Invariants: what was tried counts more than a version number: distributions port features back.
"""

import re
from collections.abc import Iterator

from podwire.doctor.facts import NATIVE, Facts, Trial
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong
from podwire.model.addresses import IPV4, IPV6
from podwire.model.snapshot import Transport

NEEDS = (
    ((5, 0), "marks on neighbours (NDA_PROTOCOL)"),
    ((5, 5), "second names of links (IFLA_PROP_LIST)"),
    ((5, 10), "comments on nftables chains"),
    ((5, 18), "marks on addresses (IFA_PROTO)"),
)
"""The first release of Linux that has it."""
_NO_MISSES = (6, 17)
"""Since then a lookup that a commit overtakes begins anew."""
_SUDO = "sudo podwire doctor"
_NEWER = "boot a kernel of Linux 5.18 or later"
_WITH_IPV6 = (
    "remove ipv6.disable=1 from the kernel's command line, and restart the node; its addresses need not be used"
)


def release(facts: Facts) -> Iterator[Judgement]:
    found = re.match(r"(\d+)\.(\d+)", facts.kernel.release)
    if found is None:
        yield note(f"release {facts.kernel.release!r} is not understood")
        return
    number = int(found[1]), int(found[2])
    missing = [f"{what}, since {least[0]}.{least[1]}" for least, what in NEEDS if number < least]
    if not missing:
        risk = "; before 6.17 a lookup may miss a backend while it is replaced, so Podwire's rules look twice"
        yield ok(f"Linux {facts.kernel.release}{risk if number < _NO_MISSES else ''}")
    elif isinstance(facts.kernel.trial, Trial) and not facts.kernel.trial.marks:
        yield note(f"Linux {facts.kernel.release} is older than 5.18, but has what Podwire needs: tried")
    else:
        yield warning(f"Linux {facts.kernel.release} may lack: {'; '.join(missing)}", _NEWER)


def capabilities(facts: Facts) -> Iterator[Judgement]:
    missing = ", ".join(facts.kernel.capabilities)
    if not missing:
        yield ok("CAP_NET_ADMIN and CAP_SYS_ADMIN")
    elif facts.setup.root:
        yield wrong(
            f"this process, of root, lacks {missing}: an agent started like this can't work",
            "in the DaemonSet: securityContext.capabilities.add: [NET_ADMIN, NET_RAW, SYS_ADMIN]",
        )
    else:
        yield note(f"this process lacks {missing}: what needs them is not looked into", _SUDO)


def library(facts: Facts) -> Iterator[Judgement]:
    if facts.kernel.libnftables:
        yield wrong(
            facts.kernel.libnftables, "apt-get install libnftables1    # Fedora, RHEL: dnf install nftables-libs"
        )
    else:
        yield ok("libnftables.so.1 is there")


def python(facts: Facts) -> Iterator[Judgement]:
    found = facts.kernel.python
    if isinstance(found, Unseen):
        yield unseen(found)
    elif found == NATIVE:
        yield ok("none is needed: the CNI plugin is native")
    elif found:
        yield ok(found)
    else:
        yield wrong(
            "no Python 3.11 or later in /usr/bin", "apt-get install python3    # or your distribution's python3.11"
        )


def rules(facts: Facts) -> Iterator[Judgement]:
    trial = facts.kernel.trial
    if isinstance(trial, Unseen):
        yield unseen(trial)
        return
    for family in (IPV4, IPV6):
        error = trial.rules.get(family.name, "")
        if error and family == IPV6 and not _has_ipv6(facts):
            yield wrong(f"the {family} rules can't be loaded, as the kernel runs without IPv6: {error}", _WITH_IPV6)
        elif error:
            yield wrong(
                f"the {family} rules can't be loaded: {error}",
                "modprobe -a nf_tables nft_chain_nat nft_numgen nft_fib_inet nft_reject_inet; "
                "else boot a kernel with CONFIG_NF_TABLES and its parts",
            )
        else:
            yield ok(f"the {family} rules load in an empty namespace")


def nat(facts: Facts) -> Iterator[Judgement]:
    trial = facts.kernel.trial
    if isinstance(trial, Unseen):
        yield unseen(trial)
    elif trial.nat:
        yield wrong(
            f"destination and source can't be rewritten: {trial.nat}",
            "modprobe -a nf_conntrack nf_nat nft_chain_nat nft_masq",
        )
    else:
        yield ok("connections are tracked and rewritten")


def veth(facts: Facts) -> Iterator[Judgement]:
    trial = facts.kernel.trial
    if isinstance(trial, Unseen):
        yield unseen(trial)
    elif trial.veth:
        yield wrong(f"no veth pair can be made: {trial.veth}", "modprobe veth")
    else:
        yield ok("a veth pair can be made")


def marks(facts: Facts) -> Iterator[Judgement]:
    trial = facts.kernel.trial
    if isinstance(trial, Unseen):
        yield unseen(trial)
    elif trial.marks:
        yield wrong(f"the kernel loses Podwire's marks on {', '.join(trial.marks)}", _NEWER)
    else:
        yield ok("addresses, routes, neighbours and links keep Podwire's marks")


def vxlan(facts: Facts) -> Iterator[Judgement]:
    trial = facts.kernel.trial
    if isinstance(trial, Unseen):
        yield unseen(trial)
    elif trial.vxlan:
        say = wrong if facts.setup.transport is Transport.VXLAN else note
        yield say(
            f"no VXLAN interface can be made: {trial.vxlan}",
            'modprobe vxlan    # or transport = "direct", where all nodes share a link',
        )
    else:
        yield ok("a VXLAN interface can be made")


def ipv6(facts: Facts) -> Iterator[Judgement]:
    wanted = IPV6 in facts.families
    if not _has_ipv6(facts):
        yield wrong("the kernel runs without IPv6, and the agent doesn't start there", _WITH_IPV6)
        return
    off = [name for name in ("all", "default") if _disabled(facts, name)]
    fix = f"sysctl -w {' '.join(f'net.ipv6.conf.{name}.disable_ipv6=0' for name in off)}"
    if off and wanted:
        yield wrong(f"IPv6 is off (net.ipv6.conf.{', '.join(off)}.disable_ipv6 = 1), and the cluster has it", fix)
    elif off:
        yield note(f"IPv6 is off (net.ipv6.conf.{', '.join(off)}.disable_ipv6 = 1)", fix)
    else:
        yield ok("IPv6 is on")


def _has_ipv6(facts: Facts) -> bool:
    it = facts.settings.interfaces.get("all")
    return it is not None and it.disable_ipv6 is not None


def _disabled(facts: Facts, name: str) -> bool:
    it = facts.settings.interfaces.get(name)
    return it is not None and it.disable_ipv6 == "1"
