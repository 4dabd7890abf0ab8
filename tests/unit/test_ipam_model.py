"""Addresses of pools and attachments against a simple model, whatever comes and goes, in whatever order.

The agent's own parts are real from events to SQLite; below is a kernel in memory, and beside it an API server that is a
dictionary: what it says reaches the agent later, or, while it is away, not at all. The model knows which pods live, and
what the agent was told of; it takes the addresses from the agent, and judges each when it is given.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from podwire import restoring
from podwire.config import Config
from podwire.controller.events import (
    AddPod,
    DeletePod,
    Event,
    KubeStateChange,
    PodWired,
    Refusal,
    Refused,
    Resync,
    ResyncReason,
)
from podwire.controller.transaction import Transaction
from podwire.ipam.claims import Wishes, due
from podwire.ipam.own import own_addresses
from podwire.model.addresses import Address, Prefix, family_of, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    Node,
    NodeKey,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.pods.readiness import obstacle
from podwire.store.rows import Store
from tests.unit import world
from tests.unit.test_attachments_model import Kernel
from tests.unit.test_claims import pool
from tests.unit.world import Memory

ONE, TWO = NodeKey("one"), NodeKey("two")
KEYS = tuple(AttachmentKey(f"s{number}", "eth0") for number in range(9))
CIDRS = ((), ("10.9.0.0/29",), ("10.9.0.0/29", "fd09::/125"), ("10.9.0.8/30",))
POOLS: Mapping[str, tuple[PodPool, ...]] = {
    "all": (
        pool("10.1.0.0/27", "fd01::/122", sizes=(29, 125)),
        pool("10.1.0.0/27", sizes=(29, 125), reserved=("10.1.0.0-10.1.0.2", "10.1.0.12-10.1.0.14")),
        pool("10.1.0.0/28", sizes=(29, 125), auto_assign=False),
    ),
    "web": (
        pool("10.2.0.0/28", sizes=(30, 125), auto_assign=False, reserved=("10.2.0.5-10.2.0.6",)),
        pool("10.1.0.16/28", sizes=(29, 125)),  # of what `all` has
    ),
}
FIXED = tuple(map(parse_address, ("10.1.0.1", "10.1.0.13", "10.2.0.5", "10.2.0.9")))
keys = st.sampled_from(KEYS)


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.config = Config("one", self.directory)
        self.kernel, self.nftables = Kernel(), Memory("nftables")
        self.runner = asyncio.Runner()
        self.api: dict[ObjectKey, Object] = {ONE: Node(), TWO: Node(), PodPoolKey("all"): POOLS["all"][0]}
        self.given: dict[AttachmentKey, tuple[Address, ...]] = {}
        self.wishes = Wishes()
        self.start(told=True)

    def teardown(self) -> None:
        self.store.close()
        self.runner.close()
        shutil.rmtree(self.directory)

    # --- the agent -----------------------------------------------------------------------------

    def start(self, told: bool) -> None:
        """`told`: the API server answers."""
        self.store = Store(self.config.database)
        drivers = (self.store, self.kernel, self.nftables)
        self.transaction = Transaction(world.CAPABILITIES, drivers)  # type: ignore[arg-type]
        self.now = Snapshot(Local("one", 1500, claims_blocks=True, boot="b"))
        restored = restoring.restored(self.config, self.store, self.kernel, self.nftables, "b")  # type: ignore[arg-type]
        self.submit(restored)
        self.submit(Resync(ResyncReason.STARTUP, dict(self.api) if told else None, whole=told))

    def submit(self, event: Event) -> Refused | None:
        try:
            self.now, result = self.runner.run(self.transaction.run(self.now, event))
        except Refused as refused:
            return refused
        assert result.error is None
        return None

    def tell(self) -> None:
        """What the API server has, as its watch says."""
        held = {**self.now.nodes, **self.now.pools, **self.now.blocks}
        changes = [(key, it) for key, it in self.api.items() if held.get(key) != it]
        changes += [(key, None) for key in held if key not in self.api]
        if not self.now.whole:
            self.submit(Resync(ResyncReason.SOURCE_RECONNECTED, dict(self.api)))
        self.submit(KubeStateChange(tuple(sorted(changes, key=lambda change: str(change[0])))))

    # --- what happens --------------------------------------------------------------------------

    @initialize(all_=st.integers(0, 2), web=st.integers(0, 2), cidrs=st.sampled_from(CIDRS), count=st.integers(0, 6))
    def begin(self, all_: int, web: int, cidrs: tuple[str, ...], count: int) -> None:
        self.change_a_pool("all", all_)
        self.change_a_pool("web", web)
        self.change_pod_cidrs(cidrs)
        self.tell()
        for key in KEYS[:count]:
            self.add(key, "", None, insist=True)

    @rule(
        key=keys,
        named=st.sampled_from(("", "", "all", "web")),
        fixed=st.none() | st.none() | st.sampled_from(FIXED),
        insist=st.booleans(),
    )
    def add(self, key: AttachmentKey, named: str, fixed: Address | None, insist: bool) -> None:
        """`insist`: where it is refused it comes again once what is due was claimed, as runtimes do."""
        wanted = () if fixed is None else (fixed,)
        before, could = self.now, obstacle(self.now)
        space = self.space_of(key)
        device, _, inode = space.partition(":")
        pod = PodKey("default", key.sandbox)
        refused = self.submit(AddPod(key, pod, space.path, int(device), int(inode), pool=named, fixed=wanted))
        if refused is not None:
            assert key not in self.given
            assert refused.refusal in (Refusal.EXHAUSTED, Refusal.NOT_READY)
            assert named or fixed or could is not None
            self.wishes = Wishes(frozenset((named,)) - {""}, frozenset(wanted))
            if insist:
                self.claim()
                self.add(key, named, fixed, insist=False)
            return
        self.submit(PodWired(key))
        held = self.now.attachments[key].addresses
        if key in self.given:
            assert held == self.given[key]
            return
        assert named or fixed or could is None
        self.judge(before, held, named, fixed)
        self.given[key] = held

    def space_of(self, key: AttachmentKey) -> Any:
        path = f"/run/netns/{key.sandbox}"
        if path not in self.kernel.spaces:
            self.kernel.make(path)
        return self.kernel.spaces[path]

    def judge(self, before: Snapshot, held: tuple[Address, ...], named: str, fixed: Address | None) -> None:
        """Each of another family, none that anybody has, none outside of what the node has, none reserved."""
        taken = {address for addresses in self.given.values() for address in addresses}
        assert held
        assert len({family_of(address) for address in held}) == len(held)
        assert fixed is None or fixed in held
        for address in held:
            assert address not in taken
            assert address not in own_addresses(before)
            single = before.blocks.get(PodBlockKey(Prefix(address, family_of(address).bits)))
            if address == fixed:
                assert single is not None
                assert single.node == "one"
                continue
            assert single is None
            cidrs = [cidr for cidr in before.node.pod_cidrs if address in cidr]
            blocks = [key for key in before.blocks if address in key.cidr]
            if cidrs and not named:
                continue
            (block,) = blocks
            it = before.pools[PodPoolKey(before.blocks[block].pool)]
            assert before.blocks[block].node == "one"
            assert before.blocks[block].pool == named or (not named and it.auto_assign)
            assert not any(address in each for each in it.reserved)
            assert address not in (block.cidr.first, *([block.cidr.last] if len(address) == 4 else []))

    @rule(key=keys)
    def delete(self, key: AttachmentKey) -> None:
        assert self.submit(DeletePod(key)) is None
        self.given.pop(key, None)

    @rule()
    def claim(self) -> None:
        """As the claimer does: the API server has the last word, by compare-and-set."""
        claims = due(self.now, self.wishes)
        for cidr in claims.give:
            held = self.api.get(PodBlockKey(cidr))
            if held == self.now.blocks[PodBlockKey(cidr)]:
                del self.api[PodBlockKey(cidr)]
        for claim in (*claims.take, *claims.renew):
            self.api.setdefault(PodBlockKey(claim.cidr), PodBlock("one", claim.pool))
        self.tell()

    @rule()
    def hear(self) -> None:
        self.tell()

    @rule(name=st.sampled_from(sorted(POOLS)), number=st.none() | st.integers(0, 2))
    def change_a_pool(self, name: str, number: int | None) -> None:
        self.api.pop(PodPoolKey(name), None)
        if number is not None:
            self.api[PodPoolKey(name)] = POOLS[name][number % len(POOLS[name])]

    @rule(cidrs=st.sampled_from(CIDRS))
    def change_pod_cidrs(self, cidrs: tuple[str, ...]) -> None:
        self.api[ONE] = Node(tuple(map(parse_prefix, cidrs)))

    @rule(data=st.data(), name=st.sampled_from(sorted(POOLS)))
    def another_node_takes_a_block(self, data: st.DataObject, name: str) -> None:
        """As its agent would, by what the API server says now."""
        theirs = Snapshot(Local("two", 1500, claims_blocks=True), whole=True)
        theirs, _ = self.runner.run(Transaction((), ()).run(theirs, KubeStateChange(tuple(self.api.items()))))
        fixed = data.draw(st.sampled_from((None, *FIXED)))
        for claim in due(
            theirs, Wishes(frozenset((name,)), frozenset() if fixed is None else frozenset((fixed,)))
        ).take:
            self.api.setdefault(PodBlockKey(claim.cidr), PodBlock("two", claim.pool))

    @rule()
    def another_node_gives_all_back(self) -> None:
        for key in [key for key, it in self.api.items() if isinstance(it, PodBlock) and it.node == "two"]:
            del self.api[key]

    @precondition(lambda self: any(isinstance(it, PodBlock) for it in self.api.values()))
    @rule(data=st.data())
    def a_record_is_lost(self, data: st.DataObject) -> None:
        lost = sorted((key for key in self.api if isinstance(key, PodBlockKey)), key=str)
        del self.api[data.draw(st.sampled_from(lost))]

    @rule(told=st.booleans())
    def restart(self, told: bool) -> None:
        """Without an API server it goes on with what it has."""
        before = self.now
        self.store.close()
        self.start(told)
        if not told:
            assert obstacle(self.now) == obstacle(before) or not before.whole or before.nodes.get(TWO) is not None
            assert self.now.blocks_of.get(ONE) == before.blocks_of.get(ONE)
            assert self.now.pools == before.pools

    @rule(told=st.booleans())
    def lose_the_store(self, told: bool) -> None:
        self.store.close()
        for part in self.directory.glob("podwire.db*"):
            part.unlink()
        self.start(told)

    # --- what holds always ---------------------------------------------------------------------

    @invariant()
    def who_lives_has_what_was_given(self) -> None:
        assert {key: it.addresses for key, it in self.now.attachments.items()} == {
            key: tuple(sorted(addresses, key=lambda it: (len(it), it))) if self.rebuilt(key) else addresses
            for key, addresses in self.given.items()
        }

    def rebuilt(self, key: AttachmentKey) -> bool:
        return not self.now.attachments[key].serial if key in self.now.attachments else False

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        pods = [address for addresses in self.given.values() for address in addresses]
        assert len(pods) == len(set(pods))
        assert set(own_addresses(self.now)).isdisjoint(pods)
        rows = {key: it for key, it in self.store.restored().attachments.items() if isinstance(it, Attachment)}
        assert rows == dict(self.now.attachments)

    @invariant()
    def what_the_node_has_is_written_down(self) -> None:
        held = self.store.restored().objects
        mine = {key: it for key, it in self.now.blocks.items() if it.node == "one"}
        assert {key: it for key, it in held.items() if isinstance(key, PodBlockKey)} == mine
        assert {key: it for key, it in held.items() if isinstance(key, PodPoolKey)} == dict(self.now.pools)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_addresses_of_pools_are_as_a_simple_model_says() -> None:
    run_state_machine_as_test(World, settings=settings(stateful_step_count=40, deadline=None))
