"""Planted bugs of the subscription's state machine; see `mutants` for what a mutant is."""

from ister.core.dispatch import Dispatch
from ister.core.dispatch_consumers import Consumers
from ister.core.dispatch_cursor import Cursor
from ister.core.dispatch_lanes import Lanes
from ister.core.dispatch_ledger import Ledger
from ister.core.failure import FailurePolicy
from ister.core.ring import Ring
from sim.mutants import Mutant

DISPATCH_MUTANTS = [
    Mutant("forgets what a lost consumer held", Dispatch, "_hand_on", "self._offer(parcel)", "pass"),
    Mutant("counts what a lost consumer held as acknowledged", Dispatch, "_hand_on",
           "self._ledger.keep(parcel, self._ledger.retry)\n    self._offer(parcel)", "self._finish(parcel)"),
    Mutant("takes the loss of a consumer for a failure of its messages", Dispatch, "_hand_on",
           "self._ledger.take_back(parcel.offset)", "self._ledger.take_back(parcel.offset); parcel.failures += 1"),
    Mutant("takes for unanswered what was never sent", Dispatch, "tick", "if parcel.sent:", "if True:"),
    Mutant("counts the time for an answer from handing out", Dispatch, "sent",
           "self._ledger.count_from(parcel, self._now)", "pass"),
    Mutant("leaves messages with a connection that takes nothing", Dispatch, "tick",
           "self.kind is SubscriptionType.SHARED and", "False and"),
    Mutant("gives more to a connection that takes nothing", Consumers, "next_turn", "if consumer.stalled:", "if False:"),
    Mutant("never goes on with a connection that took nothing", Dispatch, "sent", "known.stalled = False", "pass"),
    Mutant("sends what another has by now", Dispatch, "wants", "parcel.consumer.id == consumer", "True"),
    Mutant("sends twice what is queued twice", Dispatch, "wants", "not parcel.sent and", ""),
    Mutant("leaves the messages of a second stream with the first", Dispatch, "connect",
           "if known.connected:", "if False:"),
    Mutant("ignores a late acknowledgement", Dispatch, "ack", "return self._finish_elsewhere(offset)", "return False"),
    Mutant("exceeds the window by one", Dispatch, "_next_consumer", "len(self._ledger.out) >= self._window",
           "len(self._ledger.out) > self._window"),
    Mutant("hands out new messages before those that are due", Dispatch, "take",
           "self._take_due(deliveries) and not", "(self._take_new(deliveries) or self._take_due(deliveries)) and not"),
    Mutant("goes on behind a blocked message", Dispatch, "take", "and not self._ledger.blocked", ""),
    Mutant("gives up one delivery too early", FailurePolicy, "exhausted", "failures > self", "failures >= self"),
    Mutant("forgets blocked messages when the policy changes", Ledger, "release",
           "released = list(self.blocked.values())\n    self.blocked.clear()", "self.blocked.clear()\n    released = []"),
    Mutant("counts a dead letter as stored when that failed", Dispatch, "dead_letter_failed",
           "ledger.timers.set(offset, self._now + delay_s)", "self._finish_elsewhere(offset)"),
    Mutant("moves the cursor past what is out", Cursor, "finish", "if offset == self.at:\n        self.at = stop\n        return",
           "if offset <= self.at + 1:\n        self.at = stop\n        return"),
    Mutant("forgets a run of finished offsets", Cursor, "finish", "start = self._starts.pop(offset, offset)", "start = offset"),
    Mutant("skips over what was acknowledged beyond a deleted part", Cursor, "skip_to",
           "self.at = max(self.at, stop)", "pass"),
    Mutant("leaves the timer of an acknowledged message", Ledger, "remove", "self.timers.cancel(offset)", "pass"),
    Mutant("never counts a stopped consumer's bytes back", Ledger, "take_back", "self._out_bytes -= parcel.size", "pass"),
    Mutant("promotes nobody", Consumers, "_count_again", "or not self.active.connected", ""),
    Mutant("gives a consumer that was away too long its place back", Consumers, "queue_behind_if_late",
           "now - consumer.away_since > self._grace_s", "False"),
    Mutant("begins the round anew when somebody comes or goes", Consumers, "_count_again",
           "c.place > self._served", "False"),
    Mutant("passes a busy consumer over at once", Consumers, "next_turn", "now >= consumer.since + QUIET_S", "True"),
    Mutant("lets a quiet consumer take every slot", Consumers, "next_turn",
           "consumer.holds >= self.share_max", "False"),
    Mutant("lets two messages of a key be in flight", Lanes, "add",
           "lane.append(offset)", "lane.append(offset); self._unrouted.append((offset, key))"),
    Mutant("drops the queue of a key with its poisoned message", Dispatch, "_finish",
           "self._lanes.finish(parcel.offset, key_of(parcel.message))",
           "self._lanes._lanes.pop(key_of(parcel.message)) if parcel.failures else "
           "self._lanes.finish(parcel.offset, key_of(parcel.message))"),
    Mutant("skips the keys of a consumer that is away", Ring, "anyone_takes", "wants(consumer.filters, key)",
           "consumer.connected and wants(consumer.filters, key)"),
    Mutant("leaves keys with their old owner", Lanes, "reroute", "self.ring.changed()", "pass"),
    Mutant("does not look again at keys that nobody took", Lanes, "reroute", "self._unrouted + self._stranded",
           "self._unrouted"),
    Mutant("does not go on with a consumer's keys when it acknowledges", Dispatch, "_finish",
           "self._lanes.may_have_more(parcel.consumer, self._consumers.share_max)", "pass"),
]  # fmt: skip
