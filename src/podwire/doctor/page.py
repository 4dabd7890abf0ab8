"""docs/doctor.md, made from the checks. Pure."""

from itertools import groupby

from podwire.doctor.catalogue import CHECKS

_HEAD = """\
# What `podwire doctor` looks at

    podwire doctor                                   # as root, on a node, before or after the installation
    podwire doctor -o json                           # for programs
    podwire doctor --config /etc/podwire/agent.toml  # as a certain agent would see it
    kubectl -n podwire exec POD -- podwire doctor    # in the agent's container, which does not see all of the node

It looks and says what is right, what is wrong, why that matters and what to do. Nothing on the node is changed; what
must be tried is tried in a network namespace that nobody else sees and that is gone at the end. It needs no agent, no
cluster and no root: what it could not look into it says.

Each finding has a name, which stays the same from version to version, and a state:

| state | meaning |
|---|---|
| `ok` | as it should be |
| `note` | worth knowing, or could not be looked into |
| `warning` | Podwire works, but something may go wrong or get lost |
| `wrong` | keeps Podwire, or a part of it, from working |

The exit code is 1 where something is `wrong`, else 0. `-o json` gives `node`, `version`, `counts` by state, and
`findings`: a list of `name`, `state`, `seen`, `why`, `fix`; a check that finds several things gives several findings of
its name.

Without `--config` the file /etc/podwire/agent.toml is taken where it exists. `--bin-dir` and `--conf-dir` say where the
container runtime has its plugins and network configurations (k3s: /var/lib/rancher/k3s/data/current/bin and
/var/lib/rancher/k3s/agent/etc/cni/net.d).
"""


def page() -> str:
    parts = [_HEAD]
    for group, checks in groupby(CHECKS, key=lambda check: check.group):
        rows = [f"| `{it.name}` | {it.looks} | {it.why[0].upper()}{it.why[1:]}. |" for it in checks]
        parts.append("\n".join((f"## {group}\n", "| name | looks at | because |", "|---|---|---|", *rows)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
