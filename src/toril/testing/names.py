"""Checks for an application's own tests."""

from __future__ import annotations

from toril.keyspace import QueueKeys, QueueNames, SlotPlan, plan_slots, split_slots


def assert_tagged(names: type[QueueNames], *, shards: int = 3) -> SlotPlan:
    """Prove that every declared queue name keeps its keys in one slot; where they land on a cluster."""
    slots = {}
    for name in names:
        keys = QueueKeys(name)
        seen = {key.slot for key in keys.walk("job-1")}
        assert keys.tag, f"queue name {str(name)!r} carries no hash tag"
        assert len(seen) == 1, f"the keys of queue {str(name)!r} are in the slots {sorted(seen)}"
        slots[str(name)] = seen.pop()
    assert slots, f"{names.__name__} declares no queue names"
    return plan_slots(slots, {f"shard {i + 1}": [part] for i, part in enumerate(split_slots(shards))})
