"""iptables' old form (x_tables, not nftables), by its own program.

Invariants: only a table that is in use is asked for: else the question would make it.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from podwire.doctor.facts import Chain, Rule
from podwire.doctor.findings import Unseen

_LEGACY = {"ip": ("ip_tables_names", "iptables"), "ip6": ("ip6_tables_names", "ip6tables")}
"""By family: the file that says what is in use, and the program."""
_HOOKS = {"FORWARD": "forward"}
_SECONDS = 20


def read() -> tuple[list[str], tuple[Chain, ...] | Unseen]:
    """The tables in use, as `FAMILY legacy:NAME`, and their chains."""
    tables: list[str] = []
    chains: list[Chain] = []
    missing: list[str] = []
    for family, (file, program) in _LEGACY.items():
        for table in _in_use(Path("/proc/thread-self/net") / file):
            tables.append(f"{family} legacy:{table}")
            path = shutil.which(f"{program}-legacy-save")
            saved = _saved(path, table) if path is not None else None
            if saved is None:
                missing.append(f"{table} ({family})")
            else:
                chains += parse_save(saved, family, f"legacy:{table}")
    if missing:
        return tables, Unseen(f"{', '.join(missing)} in use, and no iptables-legacy-save can read it")
    return tables, tuple(chains)


def _in_use(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the old form is not in this kernel
        return []


def _saved(program: str, table: str) -> str | None:
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        done = subprocess.run(
            [program, "-t", table], capture_output=True, text=True, timeout=_SECONDS, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def parse_save(saved: str, family: str, table: str) -> list[Chain]:
    """iptables-save(8)."""
    policies: dict[str, str] = {}
    rules: dict[str, list[Rule]] = {}
    for line in saved.splitlines():
        if line.startswith(":"):
            name, policy, *_ = line[1:].split()
            policies[name] = "" if policy == "-" else policy.lower()
        elif line.startswith("-A "):
            _, chain, *words = _words(line)
            rules.setdefault(chain, []).append(_saved_rule(words))
    return [
        Chain(family, table, name, _HOOKS.get(name, "") if policy else "", policy, tuple(rules.get(name, ())))
        for name, policy in policies.items()
    ]


def _words(line: str) -> list[str]:
    """As iptables-save quotes them; a line that is cut stays as it is."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


_OPTIONS = {"-i": "in", "-o": "out", "-s": "from", "-d": "to"}


def _saved_rule(words: list[str]) -> Rule:
    conditions: list[str] = []
    verdict = ""
    at = 0
    while at < len(words):
        word, value = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word == "!":
            conditions.append("other")
            at += 3
        elif word in _OPTIONS:
            kind = _OPTIONS[word]
            shown = f"{value[:-1]}*" if value.endswith("+") else value
            conditions.append(f"{kind} {shown}")
            at += 2
        elif word in ("-j", "-g"):
            plain = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject", "RETURN": "return"}
            verdict = plain.get(value, f"{'jump' if word == '-j' else 'goto'} {value}")
            at = len(words)
        elif word == "--comment" or (word == "-m" and value == "comment"):
            at += 2
        else:
            conditions.append("other")
            at += 1
    return Rule(tuple(conditions), verdict)
