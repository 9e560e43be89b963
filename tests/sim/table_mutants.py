"""Planted bugs of the table tier; see `mutants` for what a mutant is."""

from ister.storage import resume
from ister.storage import tiered_reader as tiers
from ister.storage.retention import ObjectRetention
from ister.storage.wal_storage import WalStorage
from sim.mutants import Mutant

TABLE_MUTANTS = [
    Mutant("does not count the table when the log is behind", resume.Opening, "join",
           "goal = next_offset(wal.next_offset, stop, end.upto, known_upto)", "goal = max(wal.next_offset, stop)"),
    Mutant("forgets that uploads begin anew behind the table", resume.Opening, "_prove_skipped",
           "await self.catalog.begin_at(goal)", "pass"),
    Mutant("reads one message too many from the table", tiers.TieredReader, "_open_tier",
           "self._table.table.open(self._next, to.stop)", "self._table.table.open(self._next, to.stop + 1)"),
    Mutant("does not turn to the table when an object is gone", tiers.TieredReader, "_read_later",
           "isinstance(failure, OBJECTS_FAIL) and", "False and"),
    Mutant("serves nothing from the table", tiers, "serve",
           "(Tier.TABLE, without(table, NOTHING)),", "(Tier.TABLE, []),"),
    Mutant("deletes objects that the table does not hold, unproven", ObjectRetention, "_delete_oldest",
           "await self._table.table.prove(start, below)", "below = oldest[-1].start"),
    Mutant("prunes behind a table that is not as far, unproven", WalStorage, "prune",
           "await self._prove_held(below)",
           "below = max(ends, default=self.log_start)"),
]  # fmt: skip
