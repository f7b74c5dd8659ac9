"""What is made of the texts that Spark wraps around an error."""

from __future__ import annotations

import sysconfig

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

import cojoin as cj
from cojoin.session.spark_errors import explain

WORKER = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Job aborted due to stage failure: \
Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "functions.py", line 3, in process_element1
    raise ValueError("first\\nsecond")
ValueError: first
second

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
    ^^^^^^^^^
cojoin.errors.FunctionError: F.process_element1 raised ValueError: first
second; input 'trades', key 1, row Row(a=1)
 SQLSTATE: 39000
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
=== Streaming Query ===
Identifier: [id = 1-2, runId = 3-4]"""

FOREIGN = """An error occurred while calling o1.start.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "udf.py", line 3, in parse
    return 1 // 0
           ~~^^~~
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)"""

RAISED = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. Reason: \
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "LIBRARIES/py4j/clientserver.py", line 2, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^
  File "LIBRARIES/pyspark/errors/exceptions/captured.py", line 3, in deco
    raise converted from None
pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] input 'trades': topic trades \
partition 1 offset 0: undecodable: the value is no JSON of the schema: got {. SQLSTATE: P0001

\tat py4j.Protocol.getReturnValue(Protocol.java:1)"""

LOST = """An error occurred while calling o1.start.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.5 executor 2): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{told}

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)"""

INSTALL = (
    "install the same in the Python of every host (spark.pyspark.python, PYSPARK_PYTHON), or send all of them one "
    "environment (spark.archives), and start the query again"
)

CLIENT_ERROR = (
    "Client error accessing s3://lake/c/spark/0, failed with: Unable to execute HTTP request: The target server failed "
    "to respond (SDK Attempt Count: 2)"
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PySparkException(WORKER),
            "F.process_element1 raised ValueError: first\nsecond; input 'trades', key 1, row Row(a=1)",
        ),
        (
            PySparkException(RAISED.replace("LIBRARIES", sysconfig.get_path("purelib"))),
            (
                "input 'trades': topic trades partition 1 offset 0: undecodable: the value is no JSON of the schema: "
                "got {."
            ),
        ),
        (Py4JError(FOREIGN), "ZeroDivisionError: division by zero (udf.py:3, in parse)"),
        (cj.FunctionError("in our own words"), "in our own words"),
        (
            Py4JError(
                LOST.format(
                    told="pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
                    "worker has different version: 3.10 than that in driver: 3.12, PySpark cannot run with different "
                    "minor versions.\nPlease check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON."
                )
            ),
            f"host 10.0.0.5: expected Python 3.12, as of the driver, found 3.10 on a Python worker: {INSTALL}",
        ),
        (
            Py4JError(LOST.format(told="ModuleNotFoundError: No module named 'pyarrow'")),
            f"host 10.0.0.5: a Python worker lacks what it needs: No module named 'pyarrow'; {INSTALL}",
        ),
        (
            Py4JError(LOST.format(told="ModuleNotFoundError: No module named 'shop.parsing'; 'shop' is not a package")),
            (
                "host 10.0.0.5: a Python worker lacks a module of the query's functions: No module named "
                "'shop.parsing'; 'shop' is not a package; send it with spark.sparkContext.addPyFile(...) (with Spark "
                "Connect: spark.addArtifacts(..., pyfile=True)) before the query is built, name it in "
                "spark.submit.pyFiles, or install it in the Python of every host"
            ),
        ),
        (
            Py4JError(
                LOST.format(
                    told="cojoin.errors.EnvironmentSetupError: the Python worker on host b (python) differs from the "
                    "driver"
                )
            ),
            "the Python worker on host b (python) differs from the driver",
        ),
        (KeyError("tier"), "KeyError: 'tier'"),
        (AssertionError(), "AssertionError"),
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03"),
            "[PATH_NOT_FOUND] Path does not exist: /x.",
        ),
        (
            PySparkException(
                "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CAST_INVALID_INPUT] The value "
                "'x' is malformed. SQLSTATE: 22018 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]"
            ),
            "[CAST_INVALID_INPUT] The value 'x' is malformed.",
        ),
        (
            Py4JError("An error occurred while calling o1.a.\n: java.io.IOException: disk full\n\tat a.C.d(C.java:1)"),
            "disk full",
        ),
        (
            Py4JError(
                "An error occurred while calling o1.a.\n: java.nio.file.AccessDeniedException: s3a://lake/out: "
                "S3Exception: Access Denied (Service: S3, Status Code: 403, Request ID: 1)\n\tat a.C.d(C.java:1)"
            ),
            (
                "s3a://lake/out: S3Exception: Access Denied (Service: S3, Status Code: 403, Request ID: 1); give the "
                "session's credentials the right to list, read, write and delete in it"
            ),
        ),
        (
            PySparkException(
                "[STREAM_FAILED] Query [id = 1] terminated with exception: [CANNOT_COMMIT] Error writing state store "
                "files. SQLSTATE: 58030\n\tat a.C.d(C.java:1)\nCaused by: a.B: b\nCaused by: "
                "java.nio.file.AccessDeniedException: s3a://lake/c: Forbidden (Service: S3, Status Code: 403)"
            ),
            (
                "[CANNOT_COMMIT] Error writing state store files: s3a://lake/c: Forbidden (Service: S3, Status Code: "
                "403); give the session's credentials the right to list, read, write and delete in it"
            ),
        ),
        *(
            (
                PySparkException(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {told}"),
                (
                    f"{shown}; see that the store runs, and that this machine reaches it by the endpoint in the "
                    f"session's settings, such as fs.s3a.endpoint; then start the query again, which continues where "
                    f"it stopped"
                ),
            )
            for told, shown in (
                (f"{CLIENT_ERROR}\n\tat a.C.d(C.java:1)", CLIENT_ERROR),
                (
                    "Client error accessing s3://lake/c, failed with: Connection refused\n\tat a.C.d(C.java:1)",
                    "Client error accessing s3://lake/c, failed with: Connection refused",
                ),
                (
                    "copyFile(a, b) on a: a.b.SdkClientException: Unable to execute HTTP request: no answer",
                    "copyFile(a, b) on a: a.b.SdkClientException: Unable to execute HTTP request: no answer",
                ),
                (
                    "java.net.SocketTimeoutException: Read timed out\n\tat org.apache.hadoop.fs.azurebfs.A.b(A.java:1)",
                    "Read timed out",
                ),
            )
        ),
        (
            PySparkException("Python worker failed to connect back.\n\nJVM stacktrace:\norg.apache.spark.Spark"),
            (
                "Python worker failed to connect back: Spark has started a Python process, which gave no answer in "
                "time; start the query again; if that does not help, see that the Python of spark.pyspark.python "
                "starts within ten seconds on all hosts"
            ),
        ),
        (
            PySparkException(
                "[STREAM_FAILED] Query [id = 1] terminated with exception: Multiple streaming queries are concurrently "
                "using s3a://lake/c/spark/sources/1."
            ),
            (
                "Multiple streaming queries are concurrently using s3a://lake/c/spark/sources/1: another run of this "
                "query has written to Spark's log at the same moment; see that only one runs, and start it again, "
                "which continues where it stopped"
            ),
        ),
        *(
            (
                PySparkException(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {told}"),
                (
                    f"the columns of a table that is read as a stream have changed{where} since the query was built: "
                    f"make the inputs and connect them again; where columns were added or made wider, the query "
                    f"continues with a new checkpoint and restore_from= this one; if this comes again, start a new "
                    f"query with its own checkpoint"
                ),
            )
            for told, where in (
                ("[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 7:\nroot", " in version 7"),
                ("[DELTA_SCHEMA_CHANGED] Detected schema change:\nroot", ""),
                ("assertion failed: Invalid batch: a#1L != a#2L,b#3", ""),
            )
        ),
        (
            PySparkException(LOST.format(told="cojoin.delta.table_log.UnreadableLogError: Delta table a: it is gone")),
            "Delta table a: it is gone",
        ),
        *(
            (
                PySparkException(
                    f"[STREAM_FAILED] Query [id = 1] terminated with exception: {told} This is currently not "
                    f"supported. If you like, set the option 'o' to 'true'. The source table can be found at path "
                    f"s3a://lake/customers. SQLSTATE: 0A000"
                ),
                (
                    f"version 3 of the Delta table s3a://lake/customers has {kind}, and a stream of a table reads only "
                    f"what is appended to it. To join with the rows as they change, start a new query, with its "
                    f"own checkpoint, that reads the table's changes: "
                    f"cojoin.sources.delta('s3a://lake/customers', changes=True) as the right input of temporal_join, "
                    f"where an updated row is a new version and a deleted row ends its key's version; the table needs "
                    f"'delta.enableChangeDataFeed'. To skip all commits that update or delete rows, give the "
                    f"source Delta's option: options={{'skipChangeCommits': 'true'}}"
                ),
            )
            for told, kind in (
                (
                    (
                        "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example MERGE (a.b) at c) in "
                        "the source table at version 3."
                    ),
                    "updated or deleted rows",
                ),
                (
                    (
                        "[DELTA_SOURCE_IGNORE_DELETE] Detected deleted data (for example part-0.parquet) from "
                        "streaming source at version 3."
                    ),
                    "deleted rows",
                ),
            )
        ),
    ],
)
def test_an_error_is_told_in_its_own_words(error: BaseException, message: str) -> None:
    assert explain(error) == message


def test_a_callable_of_the_users_is_named_with_its_line() -> None:
    def sink() -> None:
        {}["tier"]

    with pytest.raises(KeyError) as caught:
        sink()
    assert explain(caught.value) == f"KeyError: 'tier' ({__file__}:{sink.__code__.co_firstlineno + 1}, in sink)"
