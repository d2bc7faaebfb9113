"""Finding and keeping what was computed: prefix index, slots, and who leaves when memory is short."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from ludus_backend.sampling.kv_pool import KvPool, largest_capacity, slot_capacity
from ludus_backend.sampling.kv_store import KvStore, Resident
from ludus_backend.sampling.prefix_index import PrefixIndex, common_prefix

TOKEN_BYTES = 2 * 1 * 1 * 2 * 4
"""One layer, one head of width 2, keys and values, fp32."""


def make_store(slots: int) -> KvStore:
    """Room for so many sequences of the smallest capacity."""
    return KvStore(KvPool(layers=1, kv_heads=1, head_dim=2, budget_bytes=slots * 128 * TOKEN_BYTES))


def acquire(store: KvStore, policy: str, conversation: str | None, ids: list[int], room: int = 0) -> Resident:
    resident = store.acquire(policy, conversation, list(ids), room)
    assert resident is not None
    return resident


def finish(store: KvStore, resident: Resident) -> None:
    resident.computed = len(resident.ids)
    store.release(resident)


@dataclass
class Entry:
    policy: str
    ids: list[int]
    indexed: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([], [], 0), ([1], [2], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 9], [1, 2, 3], 2), ([*range(99)], [*range(57)], 57)],
)
def test_common_prefix(left: list[int], right: list[int], length: int) -> None:
    assert common_prefix(left, right) == common_prefix(right, left) == length


def test_common_prefix_finds_every_place_of_the_first_difference() -> None:
    whole = list(range(40))
    for place in range(40):
        other = [*whole[:place], -1, *whole[place + 1 :]]
        assert common_prefix(whole, other) == place


def test_the_index_knows_blocks_of_the_same_policy_only() -> None:
    index = PrefixIndex()
    long = Entry("a@1", list(range(50)))
    short = Entry("a@1", [*range(16), *[7] * 16])
    index.add(long)
    index.add(short)
    levels = index.find("a@1", list(range(40)))
    assert [[id(entry) for entry in level] for level in levels] == [[id(long), id(short)], [id(long)]]
    assert index.find("a@2", list(range(40))) == []
    assert index.find("a@1", [99, *range(40)]) == []


def test_dropped_blocks_are_not_found_and_new_ids_are_added_later() -> None:
    index = PrefixIndex()
    entry = Entry("a@1", list(range(40)))
    index.add(entry)
    entry.ids += range(40, 48)
    index.add(entry)
    assert len(index.find("a@1", list(range(48)))) == 3
    index.drop(entry, keep_tokens=17)
    assert len(index.find("a@1", list(range(48)))) == 1
    index.drop(entry)
    assert index.find("a@1", list(range(48))) == []


def test_capacities_grow_by_at_most_a_half() -> None:
    steps = sorted({slot_capacity(tokens) for tokens in range(1, 9001)})
    assert steps[0] == 128
    assert all(after <= before * 1.5 for before, after in pairwise(steps))
    assert all(slot_capacity(tokens) >= tokens for tokens in range(1, 9000))
    for tokens in range(1, 9000):
        assert largest_capacity(tokens) == max((step for step in steps if step <= tokens), default=0)


def test_the_pool_stays_within_its_budget_and_gives_slabs_back() -> None:
    pool = KvPool(layers=1, kv_heads=1, head_dim=2, budget_bytes=3 * 128 * TOKEN_BYTES)
    slots = [pool.allocate(100) for _ in range(3)]
    assert all(slot is not None for slot in slots)
    assert pool.allocate(1) is None
    assert pool.used_bytes == pool.budget_bytes
    for slot in slots:
        assert slot is not None
        pool.release(slot)
    assert pool.used_bytes == 0
    assert pool.allocate(384) is not None


def test_new_slots_are_finite_because_masked_positions_are_read() -> None:
    pool = KvPool(layers=2, kv_heads=1, head_dim=2, budget_bytes=1 << 20)
    slot = pool.allocate(10)
    assert slot is not None
    assert bool((slot.slab.keys == 0).all()) and bool((slot.slab.values == 0).all())


def test_released_slots_of_another_capacity_give_their_memory_to_new_ones() -> None:
    pool = KvPool(layers=1, kv_heads=1, head_dim=32, budget_bytes=3 * 128 * 2 * 32 * 4)
    kept, released = pool.allocate(100), pool.allocate(100)
    assert kept is not None and released is not None
    for slot, number in ((kept, 1.0), (released, 2.0)):
        slot.slab.keys[:, slot.index] = number
    pool.release(released)
    assert pool.used_bytes == 2 * 128 * pool.token_bytes
    assert pool.allocate(256) is not None
    assert pool.used_bytes == pool.budget_bytes
    assert bool((kept.slab.keys[:, kept.index] == 1).all())
    # 128 tokens of 128 bytes are whole pages, so this memory is with the system and reads as zeros.
    assert not released.slab.keys[:, released.index].any()
    assert pool.allocate(100) is None


def test_copy_takes_the_first_tokens_of_every_layer() -> None:
    pool = KvPool(layers=2, kv_heads=1, head_dim=2, budget_bytes=1 << 20)
    first, second = pool.allocate(10), pool.allocate(200)
    assert first is not None and second is not None
    first.slab.keys[:, first.index] = 3.0
    first.slab.values[:, first.index] = 4.0
    pool.copy(first, second, 5)
    assert bool((second.slab.keys[:, second.index, :, :5] == 3).all())
    assert bool((second.slab.values[:, second.index, :, :5] == 4).all())
    assert bool((second.slab.keys[:, second.index, :, 5:] == 0).all())


def test_a_conversation_continues_where_it_was() -> None:
    store = make_store(4)
    finish(store, acquire(store, "a@1", "talk", list(range(30))))
    assert acquire(store, "a@1", "talk", [*range(30), 5, 6]).computed == 30


def test_the_last_id_is_always_left_to_compute() -> None:
    store = make_store(4)
    finish(store, acquire(store, "a@1", "talk", list(range(30))))
    assert acquire(store, "a@1", "talk", list(range(30))).computed == 29


def test_lora_02_keys_and_values_of_another_policy_are_never_used() -> None:
    store = make_store(4)
    finish(store, acquire(store, "a@1", "talk", list(range(40))))
    after = acquire(store, "a@2", "talk", list(range(60)))
    assert after.computed == 0
    assert store.donor(after) is None


def test_two_seats_in_one_conversation_do_not_evict_each_other() -> None:
    store = make_store(4)
    finish(store, acquire(store, "a@1", "game", [*range(20), *[7] * 20]))
    finish(store, acquire(store, "a@1", "game", [*range(20), *[8] * 20]))
    assert acquire(store, "a@1", "game", [*range(20), *[7] * 20, 1, 1]).computed == 40
    assert acquire(store, "a@1", "game", [*range(20), *[8] * 20, 1, 1]).computed == 40


def test_a_prefix_is_found_in_other_conversations_and_waits_for_the_earlier_request_only() -> None:
    store = make_store(4)
    leader = acquire(store, "a@1", "one", [*range(48), 1])
    follower = acquire(store, "a@1", "two", [*range(48), 2, 3])
    assert store.donor(leader) is None
    assert store.donor(follower) == (leader, 48)
    leader.computed = 49
    store.copy(leader, follower, 48)
    assert follower.computed == 48


def test_a_ready_prefix_is_found_behind_a_deeper_one_that_is_not() -> None:
    store = make_store(4)
    finish(store, acquire(store, "a@1", "old", [*range(32), 9]))
    earlier = acquire(store, "a@1", "one", list(range(64)))
    later = acquire(store, "a@1", "two", list(range(64)))
    donor = store.donor(earlier)
    assert donor is not None and donor[1] == 32
    assert store.donor(later) == (earlier, 63)


def test_the_least_recently_used_idle_sequence_leaves() -> None:
    store = make_store(2)
    finish(store, acquire(store, "a@1", "old", [1] * 20))
    finish(store, acquire(store, "a@1", "new", [2] * 20))
    finish(store, acquire(store, "a@1", "old", [1] * 21))
    acquire(store, "a@1", "third", [3] * 20)
    assert acquire(store, "a@1", "old", [1] * 22).computed == 21


def test_live_sequences_are_not_evicted() -> None:
    store = make_store(2)
    acquire(store, "a@1", "one", [1] * 20)
    acquire(store, "a@1", "two", [2] * 20)
    assert store.acquire("a@1", "three", [3] * 20, 0) is None


def test_forget_frees_and_waits_for_a_request_in_progress() -> None:
    store = make_store(2)
    live = acquire(store, "a@1", "talk", [1] * 20)
    store.forget("talk")
    finish(store, live)
    assert store.used_bytes == 0
    store.forget("never heard of")


def test_a_growing_sequence_takes_its_keys_along() -> None:
    store = make_store(8)
    resident = acquire(store, "a@1", None, [1] * 20)
    resident.slot.slab.keys[:, resident.slot.index, :, :20] = torch.arange(20.0)[:, None]
    resident.computed = 20
    assert store.reserve(resident, 150)
    assert resident.slot.capacity == 192
    assert resident.slot.slab.keys[0, resident.slot.index, 0, :20, 0].tolist() == list(range(20))
