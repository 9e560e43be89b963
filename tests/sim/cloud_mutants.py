"""Planted bugs of the cloud tier; see `mutants` for what a mutant is."""

from ister.cloud import adopt, proof
from ister.cloud.deleter import Deleter
from ister.cloud.reader import ObjectStream
from ister.cloud.uploader import Uploader
from ister.core.frames import kernels
from ister.storage import generations as registry
from ister.storage import resume
from ister.storage.tiered_reader import ObjectTier, TieredReader
from sim.mutants import Mutant

CLOUD_MUTANTS = [
    Mutant("uploads what is not synced", Uploader, "_cycle",
           "if self._log.next_offset > synced:", "synced = self._log.next_offset\n        if False:"),
    Mutant("counts an object as uploaded before it is described", Uploader, "_upload",
           "await self._catalog.add(descriptor)",
           "self.uploaded.reach(descriptor.stop); await self._catalog.add(descriptor)"),
    Mutant("lets a wrong checkpoint stop the upload", Uploader, "_next_run", "if hint is not None", "if False"),
    Mutant("does not adopt what a crash left", Uploader, "recover_behind", "adopted[-1] if adopted else last", "last"),
    Mutant("describes an object that a power cut may take away", adopt, "_confirmed",
           "await store.make_durable(key, data)", "pass"),
    Mutant("goes on behind objects that it did not adopt", Uploader, "recover_behind",
           "last.stop if last else await self._first_offset()", "self._log.synced_offset"),
    Mutant("prunes what is not uploaded", Deleter, "tick",
           "start = self._log.log_start\n", "return await self._log.wal.prune(wanted)\n    start = self._log.log_start\n"),
    Mutant("sweeps objects that nothing else holds", proof, "_undescribed",
           "if name.start >= upto:\n                break", "if name.start >= upto:\n                await store.delete(info.key)"),
    Mutant("sweeps described objects", proof, "_undescribed", "described_key != info.key and", ""),
    Mutant("does not look at objects when the log is behind", resume.Opening, "join",
           "if goal > wal.next_offset:", "if False:"),
    Mutant("reads one message too few from objects", TieredReader, "_decide", "OffsetRange(wal.start_offset,",
           "OffsetRange(max(0, wal.start_offset - 1),"),
    Mutant("gives up when retention moves the log's start", TieredReader, "_read_log",
           "except OffsetOutOfRangeError:", "except ZeroDivisionError:"),
    Mutant("begins an object's messages at its place to seek by", ObjectStream, "_read_object",
           "max(wanted, offset)", "offset"),
    Mutant("notes a place one byte late", kernels, "survey", "places[count, 1] = at", "places[count, 1] = at + count"),
    Mutant("says that objects hold more than they do", ObjectTier, "span", "self.uploader.uploaded.value)",
           "self.uploader.uploaded.value + 1)"),
    Mutant("takes another generation than the one on disk", registry, "decide_record",
           "max(known.generation, newest)", "known.generation + 1"),
]  # fmt: skip
