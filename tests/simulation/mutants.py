"""Steps of the protocol that are broken on purpose: the simulation has to find each.

A mutant changes some lines of one function of the real code and puts the changed function in its place.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = ["DELTA_MUTANTS", "MUTANTS", "SQL_MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """A step that is broken.

    Attributes:
        name: What is wrong.
        where: The function: its module, a colon, and its name within the module.
        changes: Pairs of what its source says, exactly once, and what it says instead.
    """

    name: str
    where: str
    changes: tuple[tuple[str, str], ...]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[FunctionType]:
        """Put the changed function in the place of the real one within the block, and return it."""
        module_name, _, path = self.where.partition(":")
        module = importlib.import_module(module_name)
        *classes, name = path.split(".")
        holder: Any = module
        for each in classes:
            holder = getattr(holder, each)
        original = inspect.getattr_static(holder, name)
        function = getattr(original, "__func__", original)
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self.changes:
            assert source.count(old) == 1, f"{self.where} has {source.count(old)} times: {old}"
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + source, f"<mutant {self.name}>", "exec")
        exec(code, vars(module), made)
        holders = [holder]
        if not classes:
            # Other modules have imported the function by its name.
            ours = [each for key, each in sys.modules.items() if key.startswith(("cojoin.", "tests.simulation."))]
            holders = [each for each in ours if getattr(each, name, None) is original]
        for each in holders:
            setattr(each, name, made[name])
        try:
            yield getattr(made[name], "__func__", made[name])
        finally:
            for each in holders:
                setattr(each, name, original)


MUTANTS = (
    Mutant(
        "the manifest before the output",
        "cojoin.spark.query.batch_protocol:BatchProtocol.run",
        (
            (
                (
                    "written = self._write_outputs(batch, report, self._markers(report, statistics, planned), files, "
                    "durations)"
                ),
                (
                    "markers = self._markers(report, statistics, planned)\n"
                    "        written = {name: {**each.sink.place(), 'batch_id': batch_id}"
                    " for name, each in self._outputs.items() if report.emitted.get(name)}"
                ),
            ),
            (
                "self._checkpoint.manifests.write(manifest)",
                (
                    "self._checkpoint.manifests.write(manifest)\n"
                    "    self._write_outputs(batch, report, markers, files, durations)"
                ),
            ),
        ),
    ),
    Mutant(
        "cleaning does not look for what other snapshots point to",
        "cojoin.checkpoints.state_table:StateCleaner._unneeded",
        (("each not in needed", "True"),),
    ),
    Mutant(
        "a driver that takes over does not fence the table",
        "cojoin.checkpoints.output_tables:TableTransactions.fence",
        (("if self._epoch is None:", "if True:"),),
    ),
    Mutant(
        "cleaning does not keep the segments that snapshots name",
        "cojoin.checkpoints.segment_files:SegmentCleaner.remove",
        (("names.intersection(of_snapshots())", "set()"),),
    ),
    Mutant(
        "a savepoint does not look whether a cleaning may have passed over the segments that it names",
        "cojoin.checkpoints.savepoint:_write",
        (
            (
                "if may_be_deleted(Manifests(files), batch_id, unnamed=False):\n            return False",
                "may_be_deleted(Manifests(files), batch_id, unnamed=False)",
            ),
        ),
    ),
    Mutant(
        "segments are deleted one batch too early",
        "cojoin.checkpoints.segment_files:SegmentCleaner.take",
        (("for each in self._recent for name", "for each in [manifest] for name"),),
    ),
    Mutant(
        "the description of the query is written without compare-and-swap",
        "cojoin.checkpoints.identity:claim_checkpoint",
        (
            (
                "written = replace_document(files, _FILE, _FORM, content, None)",
                "written = True\n        write_document(files, _FILE, _FORM, content)",
            ),
        ),
    ),
    Mutant(
        "the progress table's manifests are deleted before its rows are written",
        "cojoin.checkpoints.progress_table:ProgressTable.flush",
        (("last, path = ", "self._manifests.clean(self._waiting[-1].batch_id)\n        last, path = "),),
    ),
    Mutant(
        "a run does not look for batches that are missing in the progress table",
        "cojoin.checkpoints.progress_table:ProgressTable.recover",
        (("self._manifests.read_after(self._written)", "[]"),),
    ),
    Mutant(
        "a savepoint lists the manifests before the commits",
        "cojoin.checkpoints.savepoint:take_savepoint",
        (
            ("committed = committed_batches(files)", "ids = Manifests(files).batch_ids()"),
            ("manifests = Manifests(files)", "manifests, committed = Manifests(files), committed_batches(files)"),
            ("for batch_id in manifests.batch_ids() if", "for batch_id in ids if"),
        ),
    ),
    Mutant(
        "a snapshot is removed although it has become a savepoint",
        "cojoin.spark.query.batch_protocol:Cleaning._remove",
        (("savepoints_too=False", "savepoints_too=True"),),
    ),
    Mutant(
        "a snapshot becomes a savepoint without compare-and-swap",
        "cojoin.checkpoints.snapshots:Snapshots.promote",
        (
            (
                "self._replace(savepoint, tag)",
                (
                    "write_document(self._files, numbered_name(_DIRECTORY, batch_id), SNAPSHOT_FORM, "
                    "asdict(savepoint)) is None"
                ),
            ),
        ),
    ),
    Mutant(
        "the lease is taken without compare-and-swap",
        "cojoin.checkpoints.lease:Lease._write_and_confirm",
        (
            (
                "replace_record(self._files, self._record, seen.tag)",
                "replace_record(self._files, self._record, read_lease(self._files).tag)",
            ),
        ),
    ),
    Mutant(
        "a manifest is written over a later run's",
        "cojoin.storage.documents:write_fenced",
        (("> epoch:", "> 10**9:"),),
    ),
    Mutant(
        "the lease is never looked at",
        "cojoin.checkpoints.lease:Lease.check",
        (("if now is not None and self._is_ours(now):", "if True:"),),
    ),
    Mutant(
        "a savepoint does not look whether the batch's former snapshot is being removed",
        "cojoin.checkpoints.savepoint:_finish_removal",
        (("if batch_id not in {each.batch_id for each in snapshots.removed()}:", "if True:"),),
    ),
    Mutant(
        "cleaning believes a listing without the newest snapshot",
        "cojoin.checkpoints.snapshots:Snapshots.listed",
        (("if known is not None and known not in", "if False and known not in"),),
    ),
    Mutant(
        "a snapshot stays that a run has written after another has taken over",
        "cojoin.checkpoints.snapshots:Snapshots.write",
        (("try:\n        check()", "try:\n        pass"),),
    ),
    Mutant(
        "a snapshot that is written again forgets what its former index pointed to",
        "cojoin.checkpoints.snapshots:Snapshots.write",
        (('**{each: [] for each in content["content_batch_ids"]}, ', ""),),
    ),
    Mutant(
        "the progress table is written without a batch in the midst of those that a run has seen",
        "cojoin.checkpoints.progress_table:ProgressTable._following",
        (("if len(seen) < last - newest:", "if min(seen, default=0) > newest + 1:"),),
    ),
    Mutant(
        "a savepoint is no longer one once its batch has run again",
        "cojoin.checkpoints.snapshots:Snapshots.write",
        (('if content["kind"] == "savepoint" else', "if False else"),),
    ),
    Mutant(
        "a savepoint points to content of which only other key groups are still needed",
        "cojoin.checkpoints.snapshots:Snapshots.holders",
        (
            (
                "named(self.all())",
                "{(int(each), group) for one in self.all() for each in one.content_batch_ids for group in range(9)}",
            ),
        ),
    ),
    Mutant(
        "starts of one moment do not wait for each other where there is no compare-and-swap",
        "cojoin.checkpoints.identity:claim_checkpoint",
        (
            ("if written and files.has_conditional_writes:", "if written:"),
            ("if not files.has_conditional_writes and not files.exists(LEASE_FILE):", "if False:"),
        ),
    ),
    Mutant(
        "those who write the index of a snapshot do not wait for each other where there is no compare-and-swap",
        "cojoin.checkpoints.snapshots:Snapshots._stays",
        (("if self._files.has_conditional_writes:", "if True:"),),
    ),
    Mutant(
        "a savepoint points to content without a look whether it is still there",
        "cojoin.checkpoints.savepoint:_write",
        (("holders &= snapshots.holders()", "pass"),),
    ),
    Mutant(
        "cleaning does not keep the content to which a savepoint may point that is being taken",
        "cojoin.checkpoints.snapshots:Snapshots.promised",
        (("self._noted()", "()"),),
    ),
    Mutant(
        "cleaning does not keep the content to which an old savepoint may point that still counts in the end",
        "cojoin.checkpoints.snapshots:Snapshots.promised",
        (("each.batch_id not in barred", "not self._is_interrupted(each)"),),
    ),
    Mutant(
        "cleaning never removes what was promised to a savepoint that counts",
        "cojoin.checkpoints.snapshots:Snapshots.promised",
        (("each.batch_id not in barred", "not self._is_marked(each.batch_id)"),),
    ),
    Mutant(
        "a savepoint whose claim has ended removes what another has made sure of",
        "cojoin.checkpoints.snapshots:Snapshots.write",
        (
            ("        return\n    try:", "        pass\n    try:"),
            ("except QueryFailedError:", "except (BeingRemovedError, QueryFailedError):"),
            ("savepoints_too=False", "savepoints_too=True"),
        ),
    ),
    Mutant(
        "cleaning does not tell savepoints that are being taken that their rows are removed",
        "cojoin.checkpoints.state_table:StateCleaner._delete_unneeded",
        (("if {batch_id for batch_id, _ in gone} <= batch_ids:", "if True:"),),
    ),
    Mutant(
        "cleaning does not look whether a savepoint was written since it has ended others",
        "cojoin.checkpoints.state_commits:StateCommits.remove",
        (("None if ended is None else Claim.above_savepoints(ended.version)", "None"),),
    ),
    Mutant(
        "cleaning forgets a snapshot of which it has kept content for a savepoint that is being taken",
        "cojoin.checkpoints.state_table:StateCleaner.clean",
        (("if waiting.isdisjoint(_holders(snapshot)):", "if True:"),),
    ),
    Mutant(
        "a savepoint that was taken for interrupted commits its rows",
        "cojoin.checkpoints.state_commits:StateCommits.end_savepoints",
        (("self._claim(claim)", "pass"),),
    ),
    Mutant(
        "a savepoint whose files are deleted does not look whether its claim is over",
        "cojoin.checkpoints.state_commits:StateCommits.replace",
        (("claim.is_made(self._claimed)", "pass"),),
    ),
    Mutant(
        "a start does not look again where a former run has counted a batch meanwhile",
        "cojoin.spark.query.start:_last_counted",
        (("if manifests.last() == last:", "if True:"),),
    ),
    Mutant(
        "a run that was taken over writes over the rows of its successor's snapshot",
        "cojoin.checkpoints.state_commits:StateCommits.replace",
        (("writer.commit(change, claim.is_made,", "writer.commit(change, lambda _: False,"),),
    ),
    Mutant(
        "a drain that stood still ends the inputs of its successor",
        "cojoin.checkpoints.control:keep_former_runs_from_draining",
        (("if epoch > 1:", "if False:"),),
    ),
    Mutant(
        "a savepoint is not taken again where the query has removed what it was reading",
        "cojoin.checkpoints.savepoint:take_savepoint",
        (("if committed_batches(files)[-1:] == committed[-1:]:", "if True:"),),
    ),
    Mutant(
        "a restoration that stood still writes into Spark's logs",
        "cojoin.storage.store:Store.write_checked",
        (
            ("check()", "pass"),
            (
                "if self.replace(name, text.encode(), None if stored is None else stored.tag):",
                "if not self.write(name, text):",
            ),
        ),
    ),
    Mutant(
        "a restoration that stood still writes down how far it has come",
        "cojoin.checkpoints.restoration:Restoration.write",
        (('"has continued the restoration"', '"", epoch_of=lambda _: 0'),),
    ),
    Mutant(
        "a restoration does not look whether its snapshot was removed while it was read",
        "cojoin.spark.savepoints.restore:write_restoration",
        (("table.check_unchanged(snapshot)", "pass"),),
    ),
)


DELTA_MUTANTS = (
    Mutant(
        "a commit does not write the versions of applications",
        "cojoin.delta.table_writer:TableWriter._put",
        (("applications, info = change.applications, ", "applications, info = {}, "),),
    ),
    Mutant(
        "a commit is made on a later version than the one that was compared",
        "cojoin.delta.table_writer:TableWriter._put",
        (("if self._table.is_open:", "if self._table.is_open:\n            self._table.update()"),),
    ),
    Mutant(
        "a commit is compared once, whatever was committed since",
        "cojoin.delta.table_writer:TableWriter.commit",
        (("if compare(", "if failed is None and compare("),),
    ),
    Mutant(
        "deltalake repeats a commit after another's",
        "cojoin.delta.table_writer:TableWriter._put",
        (("retries=0", "retries=15"),),
    ),
    Mutant(
        "a commit is not read back where others write over it",
        "cojoin.delta.table_writer:TableWriter._made",
        (("if self._reads_back:", "if False:"),),
    ),
    Mutant(
        "a handle stays in use although the last commit is another one",
        "cojoin.delta.table_writer:TableWriter._current",
        (("self._log.is_as_it_was()", "True"),),
    ),
    Mutant(
        "the version that is compared need not be the handle's",
        "cojoin.delta.table_writer:TableWriter._current",
        (("(table.version, table.table_id) == (version, self._table.table_id)", "True"),),
    ),
    Mutant(
        "a conflict is taken for a failure of the store",
        "cojoin.delta.table_writer:TableWriter.commit",
        (("failed is not None and version == tried", "failed is not None"),),
    ),
    Mutant(
        "files are removed that another writer has replaced",
        "cojoin.delta.table_writer:TableWriter._gone",
        (("if not removed:", "if True:"),),
    ),
    Mutant(
        "a commit does not look whether the table takes it",
        "cojoin.delta.table_writer:TableWriter._check",
        (("if why is not None:", "if False:"),),
    ),
    Mutant(
        "a commit does not look for its files",
        "cojoin.delta.table_checks:check_files",
        (("_check_sizes(store, folder, named, files)", "pass"),),
    ),
    Mutant(
        "a batch's commit does not look whether the table has the batch",
        "cojoin.delta.table_batches:TableBatches.append",
        (("is_done(self._newest(version))", "self._newest(version) > 10**9"),),
    ),
    Mutant(
        "a batch's commit does not look at the epoch",
        "cojoin.delta.table_batches:TableBatches._newest",
        (("epoch > self._epoch", "False"),),
    ),
    Mutant(
        "a batch's commit does not write the epoch",
        "cojoin.delta.table_batches:TableBatches._change",
        (("{self.app_id: batch_id, **self._fence}", "{self.app_id: batch_id}"),),
    ),
    Mutant(
        "an upsert's commit does not look whether the table has the batch",
        "cojoin.delta.table_batches:TableBatches.replace",
        (("is_done(self._newest(version))", "self._newest(version) > 10**9"),),
    ),
    Mutant(
        "an upsert is committed as it was planned on an earlier version",
        "cojoin.delta.table_batches:TableBatches.replace",
        (
            ("def change(present", "made = []\n\n    def change(present"),
            ("added, removed = plan(present)", "made or made.append(plan(present))\n        added, removed = made[0]"),
        ),
    ),
    Mutant(
        "an upsert writes the batch outside of the transaction",
        "cojoin.delta.table_batches:TableBatches.replace",
        (
            ("lambda version: is_done(self._newest(version)), new=new)", "lambda version: False, new=new)"),
            (
                "return self._writer.commit(change",
                (
                    "self._writer.commit(Change({self.app_id: batch_id}), "
                    "lambda version: is_done(self._newest(version)), new=new)\n    return self._writer.commit(change"
                ),
            ),
        ),
    ),
    Mutant(
        "an upsert replaces the row that came first",
        "cojoin.spark.sinks.delta_upsert:TableUpsert._winners",
        (('~is_stored if rule.conflict == "first" else ', ""),),
    ),
    Mutant(
        "an upsert deletes the files that its commit names",
        "cojoin.spark.sinks.delta_upsert:TableUpsert.clean",
        (("if file.name not in named:", "if True:"),),
    ),
    Mutant(
        "an upsert passes over stored rows",
        "cojoin.spark.sinks.delta_upsert:TableUpsert._look",
        (("near[at >= 0]", "near[at > 0]"), ("at[at >= 0])\n        first", "at[at > 0])\n        first")),
    ),
    Mutant(
        "a driver does not write its epoch before it reads",
        "cojoin.delta.table_batches:TableBatches.fence",
        (("if not self._fence or (", "if True or ("),),
    ),
    Mutant(
        "a former driver writes its epoch after a later one's",
        "cojoin.delta.table_batches:TableBatches.fence",
        (("self._newest(version)", "pass"),),
    ),
)
"""Steps of the commits to one table, each of which ``simulated_batches`` finds; the rare ones it alone does."""

_WRITER = "cojoin.sql.sql_sink:SqlWriter"
SQL_MUTANTS = (
    Mutant(
        "a batch's fence row is written in a transaction before that of its rows",
        f"{_WRITER}._run",
        (
            ("result = write(session)", "marked = [self._epoch, marker.batch_id, marker.to_json(), *self._identity]"),
            (
                "session.execute(self._fence.set_batch, values)",
                (
                    "session.execute(self._fence.set_batch, values)\n        session.commit()\n"
                    "        result = write(session)"
                ),
            ),
        ),
    ),
    Mutant(
        "a batch does not look whether the database has it",
        f"{_WRITER}._run",
        (("if self._has_batch(session, marker):", "if False:"),),
    ),
    Mutant("a driver does not look at the epoch", f"{_WRITER}._check_epoch", (("fence.epoch > self._epoch", "False"),)),
    Mutant(
        "a driver does not write its epoch before it reads",
        f"{_WRITER}._prepared",
        (("session.execute(self._fence.set_epoch, [self._epoch, *self._identity])", "pass"),),
    ),
    Mutant(
        "the row that came last replaces the first one",
        "cojoin.sql.statements:UpsertStatements.__init__",
        (('keeps_first = rule.conflict == "first" and not rule.order_by', "keeps_first = False"),),
    ),
    Mutant(
        "stored rows are not compared by order_by",
        f"{_WRITER}._leave_out",
        (("np.flatnonzero(~batch.rule.winners(", "np.flatnonzero(False & batch.rule.winners("),),
    ),
)
"""Steps of the upserts into a database, each of which ``simulated_databases`` finds."""
