"""Objects of Podwire's own kinds as the API has them: beside what they mean, what stands in their statuses.

Invariants: as in `objects.py`.
"""

from podwire.model.announcements import Configured
from podwire.model.balancers import Labels
from podwire.model.objects import Value


class Condition(Value, frozen=True):
    """Kubernetes API, meta/v1 Condition. `since`: when its status last changed, RFC 3339. `generation`: of the object
    that was looked at."""

    type: str
    status: str
    reason: str
    message: str
    since: str = ""
    generation: int = 0


class Counts(Value, frozen=True):
    """Addresses of a pool, of one family. The first and the last are texts, since IPv6 has many."""

    total: str = ""
    assigned: int = 0
    available: str = ""


class Declared(Value, frozen=True):
    """`value` None: it can't be understood, and `wrong` says why. `version`: by which a write is refused where the
    object has changed since. `conditions`: ours and others'. `counts`: of IPv4 and IPv6. `labels`: its own, sorted."""

    value: Configured | None
    wrong: str = ""
    version: str = ""
    uid: str = ""
    generation: int = 0
    conditions: tuple[Condition, ...] = ()
    counts: tuple[Counts | None, Counts | None] = (None, None)
    labels: Labels = ()
