"""Job files: ``cojoin init`` writes one, and the other commands load a join from one, or from a user's module.

A job is named ``jobs.enrich:joined`` or ``./main/enrich.py:joined``. Its module and the modules of its folder are
loaded again for each job, so two versions of one file in two folders do not see each other's modules. Loaded modules
are removed from Python's module table; Spark then sends their code to its workers. A job only describes a join: a query
that is started while it is loaded is an error. No message shows a value of the job's file, which may be a password.

The outputs of ``cojoin run`` are a Delta table, a folder of parquet files, or a sink that the job's file names, such as
a topic with its login, so that no password is among the words of a command.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin.api.joined import Joined
from cojoin.cli.run_report import say
from cojoin.engine.callbacks import user_line
from cojoin.errors import CojoinError, ConfigurationError, did_you_mean
from cojoin.storage.locations import is_path, without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from cojoin.cli.options import Arguments


_STARTED = (
    "a query is started while the job is loaded, and the command starts the join itself; leave it out, or put it under "
    "`if __name__ == '__main__':`"
)


def parse_job(text: str) -> tuple[str, str]:
    """Return the module or file of a job and the name in it.

    >>> parse_job("./main/enrich.py:joined")
    ('./main/enrich.py', 'joined')
    """
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name.isidentifier():
        msg = f"expected MODULE:NAME or FILE.py:NAME, such as jobs.enrich:joined, got {text!r}"
        raise ConfigurationError(msg)
    return source, name


def load_job(job: tuple[str, str], spark: Callable[[], Any], settings: Mapping[str, str]) -> Joined:
    """Load the module of a job, and return its join: see ``loaded`` and ``join_of``."""
    with loaded(job) as module:
        return join_of(job, module, spark, settings)


@contextmanager
def loaded(job: tuple[str, str]) -> Iterator[ModuleType]:
    """Yield the module of a job; at the end it is forgotten, with the modules that it has imported from its folder.

    A query that is started meanwhile is an error.
    """
    source, name = job
    job_name = f"{source}:{name}"
    is_file = source.endswith(".py")
    if is_file and not Path(source).is_file():
        msg = f"{job_name}: the file {source!r} does not exist"
        raise ConfigurationError(msg)
    folder = Path(source).absolute().parent if is_file else Path.cwd()
    with _loading_from(folder), _starting_nothing(job_name):
        with _named(job_name, "loading it"):
            module = _file_module(Path(source)) if is_file else importlib.import_module(source)
        yield module


def join_of(
    job: tuple[str, str],
    module: ModuleType,
    spark: Callable[[], Any],
    settings: Mapping[str, str],
    *,
    on_spark: bool = False,
) -> Joined:
    """Return the join of a job: a ``Joined`` of its module, or the result of a function there.

    The function's argument without a default, if it has one, is the session that ``spark`` returns; the settings are
    further arguments. ``on_spark`` starts the session also for a function that does not take it.
    """
    name = job[1]
    job_name = ":".join(job)
    named = getattr(module, name, None)
    if named is None:
        joins = [each for each, value in vars(module).items() if _may_be_job(value, module)]
        msg = f"{job_name}: {module.__file__} has no {name!r}{did_you_mean(name, joins)}"
        raise ConfigurationError(msg)
    made = named
    if isinstance(named, Joined):
        if settings:
            msg = f"{job_name}: --set gives arguments to a function, and this is a join{_line_of(name, module)}"
            raise ConfigurationError(msg)
    elif callable(named):
        session_argument = _session_argument(named, job_name, settings)
        session = spark() if session_argument or on_spark else None
        with _named(job_name, "it"):
            made = named(**dict.fromkeys(session_argument, session), **settings)
    if not isinstance(made, Joined):
        msg = (
            f"{job_name}: expected a join, such as pair.asof_join(), or a function that returns one, got "
            f"{type(made).__name__}{_line_of(name, module)}"
        )
        raise ConfigurationError(msg)
    return made


def _session_argument(function: Callable[..., Any], job_name: str, settings: Mapping[str, str]) -> list[str]:
    """Return the name of the argument that gets the session, in a list; an empty list if there is none."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    names = [each.name for each in named]
    for name in settings:
        if name not in names and not takes_any:
            msg = f"{job_name}: --set {name}: the function has no such argument{did_you_mean(name, names)}"
            raise ConfigurationError(msg)
    needed = [each.name for each in named if each.default is each.empty and each.name not in settings]
    if len(needed) > 1:
        msg = (
            f"{job_name}: expected a function with at most one argument without a default, which gets the Spark "
            f"session; it takes {', '.join(needed)}: give the others with --set NAME=VALUE"
        )
        raise ConfigurationError(msg)
    return needed


def _may_be_job(value: Any, module: ModuleType) -> bool:
    return isinstance(value, Joined) or (isinstance(value, FunctionType) and value.__module__ == module.__name__)


def _line_of(name: str, module: ModuleType) -> str:
    """Return the line in which a module assigns a name, as the end of a message."""
    file = module.__file__
    if file is None:
        return ""
    for node in reversed(ast.parse(Path(file).read_bytes()).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = {node.name}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {part.asname or part.name for part in node.names}
        else:
            names = {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
        if name in names:
            return f" ({file}:{node.lineno})"
    return ""


@contextmanager
def _named(job_name: str, who: str) -> Iterator[None]:
    """Name the job, and the line of its file, in an error that its code raises; ``who`` is the error's subject."""
    try:
        yield
    except SyntaxError as error:
        msg = f"{job_name}: {who} raised {type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
        raise ConfigurationError(msg) from error
    except CojoinError as error:
        msg = f"{job_name}: {error}{_line(error)}"
        raise type(error)(msg) from error
    except (Exception, SystemExit) as error:
        msg = f"{job_name}: {who} raised {type(error).__name__}: {error}{_line(error)}"
        raise ConfigurationError(msg) from error


def _line(error: BaseException) -> str:
    """Return the line of the user's code that raised an error, if its message does not have it."""
    line = user_line(error)
    return "" if "<frozen " in line or line in str(error) else line


@contextmanager
def _starting_nothing(job_name: str) -> Iterator[None]:
    """Refuse a query that is started meanwhile, by cojoin or by Spark itself."""

    def refuse(*arguments: Any, **settings: Any) -> NoReturn:
        del arguments, settings
        raise ConfigurationError(_STARTED)

    start, before = Joined.start, _running_queries()
    Joined.start = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        Joined.start = start  # type: ignore[method-assign]
    started = [query for query_id, query in _running_queries().items() if query_id not in before]
    for query in started:
        query.stop()
    if started:
        msg = f"{job_name}: {_STARTED} (a stream of Spark's, {started[0].name or started[0].id})"
        raise ConfigurationError(msg)


def _running_queries() -> dict[str, Any]:
    if sys.modules.get("pyspark.sql") is None:
        return {}
    from cojoin.session.sessions import active_session  # noqa: PLC0415 - jobs in memory need no Spark

    session = active_session()
    return {} if session is None else {query.id: query for query in session.streams.active}


def _file_module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _loading_from(folder: Path) -> Iterator[None]:
    """Let modules be imported from a folder, and forget afterwards those that were."""
    known, path = dict(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if known.get(name) is not module and _is_from(module, folder):
                del sys.modules[name]
                if name in known:
                    sys.modules[name] = known[name]


def _is_from(module: Any, folder: Path) -> bool:
    """Return whether a module is a user's, in a folder."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "cojoin":
        return False
    path = Path(file).absolute()
    return folder in path.parents and "site-packages" not in path.parts


_HEAD = '''\
"""Each trade with the customer record that was in force at the trade's event time.

    cojoin run {file}:enriched --output delta:./enriched --checkpoint ./_cojoin/enriched

runs it over the rows that exist now, and pauses. The same command continues from the checkpoint; `--drain` writes the
rows that still wait, and ends it; `--then-live '10 seconds'` continues with new rows. `cojoin run --help` has the rest.
"""

from __future__ import annotations

import os

import cojoin as cj

# How far the rows of an input are out of order: a trade waits until no earlier customer record can come any more.
# {idle}
WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"){idleness}
'''

_TABLES = '''
# {about}
LAKE = os.environ.get("LAKE", "{lake}")
TRADES = cj.Input(
    {trades},
    name="trades",  # in counts and messages
    key="customer_id",  # or several columns: ["venue", "customer_id"]
    event_time="event_time",  # a timestamp, which Spark holds in UTC
    watermark=WATERMARK,
)
CUSTOMERS = cj.Input(
    {customers},
    name="customers",  # its event time becomes the column customers_event_time
    key="customer_id",
    event_time="event_time",
    watermark=WATERMARK,
)


def enriched(spark):
    """Return the join; `cojoin run` starts Spark, and gives the session to the argument that has no default."""
    streams = cj.connect(TRADES, CUSTOMERS, key_groups=8)  # at most so many tasks at a time
    # tolerance="1 day" forgets older records. temporal_join, interval_join and process are the other joins.
    return streams.asof_join(how="left")
'''

_FILES_ABOUT = "Folders of parquet files; each run reads the files that are new. The demo makes folders to try it with."
_DELTA_ABOUT = """\
Delta tables; each run reads the commits that are new. For a table whose rows are updated or deleted, set its property
# delta.enableChangeDataFeed, give its source changes=True, and join with temporal_join."""

_TOPICS = '''
# The columns of the values, which are JSON; value=cj.kafka.avro(...) reads Avro by a schema registry.
TRADES = "{trades}"
CUSTOMERS = "{customers}"
SERVERS = os.environ.get("KAFKA", "localhost:9092")
OPTIONS = {{
    # librdkafka's settings. A password from the environment stands in no file, and cojoin shows it nowhere.
    # "security.protocol": "SASL_SSL",
    # "sasl.mechanism": "PLAIN",
    # "sasl.username": "enrich",
    # "sasl.password": os.environ["KAFKA_PASSWORD"],
}}

# For `--output enriched_topic`: JSON records, exactly once, into a topic that exists.
enriched_topic = cj.sinks.kafka(SERVERS, "enriched", key="customer_id", options=OPTIONS)


def topic(name, schema, since, to):
    """Return a topic as an input; the columns topic, partition and offset come after those of its values."""
    source = cj.kafka.source(SERVERS, name, schema=schema, from_=since, to=to, options=OPTIONS)
    return cj.Input(source, name=name, key="customer_id", event_time="event_time", watermark=WATERMARK)


def enriched(spark, since="earliest", to=None):
    """Return the join; `cojoin run` starts Spark, and gives the session to the argument that has no default.

    `--set since=2026-01-05 --set to=2026-01-26` reads three weeks, by the records' timestamps.
    """
    trades = topic("trades", TRADES, since, to)
    customers = topic("customers", CUSTOMERS, since, to)
    streams = cj.connect(trades, customers, key_groups=8)  # at most so many tasks at a time
    # suffixes= since columns of both have one name. tolerance="1 day" forgets older records.
    return streams.asof_join(how="left", suffixes=("", "_customer"))
'''


def write_job(arguments: Arguments) -> int:
    """Write the file, print what to do next, and return the exit code."""
    path = Path(arguments.file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        msg = f"{arguments.file}: expected the name of a Python file, such as job.py"
        raise ConfigurationError(msg)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(job_text(arguments.kind, arguments.file))
    except OSError as error:
        reason = "it exists; choose another name" if isinstance(error, FileExistsError) else error.strerror
        msg = f"{arguments.file}: it can't be written: {reason}"
        raise ConfigurationError(msg) from error
    say(f"Wrote {path}. Next:\n")
    if arguments.kind == "files":
        say("  cojoin demo --directory ./cojoin-demo")
    job = shlex.quote(f"{arguments.file}:enriched")
    say(f"  cojoin run {job} --output delta:./enriched --checkpoint ./_cojoin/enriched")
    return 0


def job_text(kind: str, file: str) -> str:
    """Return the text of a job file with inputs of a kind; its docstring has a command with the file's name."""
    from cojoin.cli.demo import CUSTOMERS_DDL, TRADES_DDL  # noqa: PLC0415 - every command imports this module

    if kind == "kafka":
        head = _HEAD.format(
            file=file,
            idle="A partition without rows for a minute no longer holds time back (if none has any: when_all_idle=).",
            idleness='.with_idleness("1 minute")',
        )
        return head + _TOPICS.format(trades=TRADES_DDL, customers=CUSTOMERS_DDL)
    head = _HEAD.format(
        file=file,
        idle='.with_idleness("20 hours") at its end lets time advance without an input that has no new rows.',
        idleness="",
    )
    if kind == "delta":
        sides = {name: f'cj.sources.delta(f"{{LAKE}}/{name}")' for name in ("trades", "customers")}
        return head + _TABLES.format(lake="/lake", about=_DELTA_ABOUT, **sides)
    sides = {
        name: f'cj.sources.files(\n        f"{{LAKE}}/{name}",\n        "parquet",\n        schema="{ddl}",\n    )'
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    }
    return head + _TABLES.format(lake="./cojoin-demo", about=_FILES_ABOUT, **sides)


_OUTPUT_KINDS = ("delta", "parquet")


@dataclass(frozen=True)
class Output:
    """An output of a command: a kind with a path or table name, or without a kind the name of a sink of the job."""

    kind: str | None
    place: str

    @classmethod
    def parse(cls, text: str) -> Output:
        """Read ``delta:PATH``, ``parquet:FOLDER``, or the name of a sink.

        >>> Output.parse("delta:/lake/enriched")
        Output(kind='delta', place='/lake/enriched')
        """
        kind, colon, place = text.partition(":")
        if not colon and text.isidentifier():
            return cls(None, text)
        if not colon or not place:
            msg = (
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in the job's file, got "
                f"{without_login(text)!r}"
            )
            raise ConfigurationError(msg)
        if kind not in _OUTPUT_KINDS:
            topic = "; a topic is a sink in the job's file: write NAME = cojoin.sinks.kafka(...), and NAME as output"
            msg = f"expected delta or parquet before the colon, got {kind!r}{did_you_mean(kind, _OUTPUT_KINDS)}"
            raise ConfigurationError(msg + (topic if kind == "kafka" else ""))
        return cls(kind, place)

    def __str__(self) -> str:
        return without_login(self.place if self.kind is None else f"{self.kind}:{self.place}")

    def check_place(self, conf: Mapping[str, str]) -> None:
        """Refuse a table's name without a catalog, since the embedded Spark forgets its tables when it ends."""
        if self.kind != "delta" or is_path(self.place):
            return
        if not any("catalog" in name or "hive" in name or "metastore" in name for name in conf):
            msg = (
                f"{self}: this is a table's name, and --conf sets no catalog; "
                f"write a path, such as delta:./{self.place}"
            )
            raise ConfigurationError(msg)

    def sink(self, module: ModuleType, option: str) -> Any:
        """Return the sink, as ``Joined.start`` takes it; the option is for messages."""
        from cojoin.spark.sinks import sinks  # noqa: PLC0415 - so that --help is quick

        if self.kind is not None:
            return sinks.delta(self.place) if self.kind == "delta" else sinks.parquet(self.place)
        named = vars(module).get(self.place)
        if named is None:
            names = [name for name, value in vars(module).items() if isinstance(value, sinks.Sink)]
            msg = (
                f"{option} {self.place}: {module.__file__} has no {self.place!r}{did_you_mean(self.place, names)}; "
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in this file"
            )
            raise ConfigurationError(msg)
        if not isinstance(named, sinks.Sink) and not _takes_batches(named):
            # The value is not shown: it may hold a login.
            msg = (
                f"{option} {self.place}: expected a sink, such as cojoin.sinks.kafka(...), or a function that takes "
                f"(DataFrame, batch_id), got {type(named).__name__}"
            )
            raise ConfigurationError(msg)
        return named


def _takes_batches(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, 0)
    except (TypeError, ValueError):
        return False
    return True
