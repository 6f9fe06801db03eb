"""Knows every environment variable: its name, form, default and meaning.

``forwardpass env`` and the reference page are generated from this table. Variables that NVIDIA Dynamo
defines keep their names; ours start with ``FORWARDPASS_``.
"""

from __future__ import annotations

from forwardpass.config import parse
from forwardpass.config.bench_variables import BENCH_TABLE
from forwardpass.config.plane_variables import PLANE_TABLE
from forwardpass.config.variable import BOOLEAN, Feature, Variable
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.ports import DEFAULT_BASE_PORT, MAX_BASE_PORT, MIN_BASE_PORT

__all__ = [
    "BIND_HOST",
    "COUNT_PAUSED_SESSIONS",
    "DRAIN_SECONDS",
    "ENDPOINT",
    "FPM_TRACE",
    "FSYNC",
    "HEARTBEAT",
    "HEARTBEAT_INTERVAL_MS",
    "MAX_SEGMENTS",
    "METRIC_PORT",
    "MODE",
    "OUTPUT_PATH",
    "PLANE",
    "PRODUCER_ID",
    "PUBLISH_QUEUE",
    "ROLL_BYTES",
    "SAMPLE_INTERVAL_MS",
    "SEND_HWM",
    "STRICT",
    "TABLE",
    "TRACE_QUEUE",
    "WORKER_ID",
    "Feature",
    "Variable",
]


FPM_TRACE = Variable(
    "DYN_FPM_TRACE",
    parse.boolean,
    False,
    BOOLEAN,
    "Generate Forward Pass Metrics and record them to trace files.",
    Feature.TRACE,
)
OUTPUT_PATH = Variable(
    "DYN_FPM_OUTPUT_PATH",
    parse.trace_prefix,
    "/tmp/dynamo-fpm",
    "a path prefix that ends in a file name",
    "Prefix of the trace files; `.<producer>.<index>.jsonl.gz` is added.",
    Feature.TRACE,
)
MODE = Variable(
    "DYN_FPM_MODE",
    parse.choice(("sampled", "full")),
    "sampled",
    '"sampled" or "full"',
    "Record every pass (`full`) or the newest per rank and interval (`sampled`).",
    Feature.TRACE,
)
SAMPLE_INTERVAL_MS = Variable(
    "DYN_FPM_SAMPLE_INTERVAL_MS",
    parse.integer(),
    5000,
    "a positive integer of milliseconds",
    "Interval of sampled mode.",
    Feature.TRACE,
)
ROLL_BYTES = Variable(
    "DYN_FPM_JSONL_GZ_ROLL_BYTES",
    parse.integer(),
    268_435_456,
    "a positive integer of bytes",
    "Uncompressed bytes after which a segment is closed and the next begins.",
    Feature.TRACE,
)
MAX_SEGMENTS = Variable(
    "DYN_FPM_MAX_SEGMENTS",
    parse.integer(),
    4,
    "a positive integer",
    "Segments kept per producer, the active one included.",
    Feature.TRACE,
)
FSYNC = Variable(
    "FORWARDPASS_FSYNC",
    parse.choice(("never", "segment", "flush")),
    "never",
    '"never", "segment" or "flush"',
    "When trace bytes are forced to the disk; it bounds what a power loss can take.",
    Feature.TRACE,
)
TRACE_QUEUE = Variable(
    "FORWARDPASS_TRACE_QUEUE",
    parse.integer(8192),
    8192,
    "an integer of at least 8192",
    "Payloads that may wait for the trace writer; the oldest go first when it is full.",
    Feature.TRACE,
)
DRAIN_SECONDS = Variable(
    "FORWARDPASS_DRAIN_SECONDS",
    parse.seconds,
    10.0,
    "a number of seconds, 0 or more",
    "Longest time a stop waits for queued records to be written.",
    Feature.TRACE,
)
METRIC_PORT = Variable(
    "DYN_FORWARDPASS_METRIC_PORT",
    parse.port_or_none(MIN_BASE_PORT, MAX_BASE_PORT),
    None,
    f"an integer from {MIN_BASE_PORT} to {MAX_BASE_PORT}",
    f"Base port of the raw stream; rank r uses base + r. Setting it turns generation on; tracing alone "
    f"uses {DEFAULT_BASE_PORT}.",
    Feature.STREAM,
)
WORKER_ID = Variable(
    "DYN_FPM_WORKER_ID",
    parse.text,
    "",
    "a decimal id",
    "The `worker_id` written into every message; the launcher sets it.",
    Feature.STREAM,
)
BIND_HOST = Variable(
    "FORWARDPASS_BIND_HOST",
    parse.text,
    "127.0.0.1",
    "an address, or * for every one",
    "Address the raw stream binds. The stream is not authenticated and shows the workload.",
    Feature.STREAM,
)
HEARTBEAT = Variable(
    "FORWARDPASS_HEARTBEAT",
    parse.choice(("when-idle", "always-zero")),
    "when-idle",
    '"when-idle" or "always-zero"',
    "What a quiet stream sends: the real queue (`when-idle`), or always zeros like the reference.",
    Feature.STREAM,
)
HEARTBEAT_INTERVAL_MS = Variable(
    "DYN_FPM_HEARTBEAT_INTERVAL_MS",
    parse.integer(1, 300_000),
    1000,
    "an integer of milliseconds from 1 to 300000",
    "Silence after which a stream speaks.",
    Feature.STREAM,
    fallback=True,
)
PUBLISH_QUEUE = Variable(
    "FORWARDPASS_PUBLISH_QUEUE",
    parse.integer(),
    10_000,
    "a positive integer",
    "Messages that may wait for the publisher's thread; new ones are dropped when it is full.",
    Feature.STREAM,
)
SEND_HWM = Variable(
    "FORWARDPASS_SEND_HWM",
    parse.integer(1, 2**31 - 1),
    100_000,
    "a positive integer",
    "Messages kept for each slow reader of the raw stream (about 0.7 kB each: 70 MB by default).",
    Feature.STREAM,
)
STRICT = Variable(
    "FORWARDPASS_STRICT",
    parse.boolean,
    False,
    BOOLEAN,
    "Fail the engine's start when the stream cannot be set up, instead of serving without it.",
    Feature.STREAM,
)
COUNT_PAUSED_SESSIONS = Variable(
    "FORWARDPASS_COUNT_PAUSED_SESSIONS",
    parse.boolean,
    False,
    BOOLEAN,
    "Count streaming sessions that wait for their next input as queued prefills, like the reference, "
    "although they have nothing to run (vLLM).",
    Feature.STREAM,
)
PRODUCER_ID = Variable(
    "FORWARDPASS_PRODUCER_ID",
    parse.text,
    "",
    "a name",
    "Fixed producer id for trace files, so that retention spans restarts.",
    Feature.TRACE,
)
ENDPOINT = Variable(
    "FORWARDPASS_ENDPOINT",
    parse.endpoint,
    Endpoint(),
    "namespace.component.endpoint",
    "Identity of the stream in traces and on the event plane.",
    Feature.RELAY,
)
PLANE = Variable(
    "FORWARDPASS_PLANE",
    parse.text,
    "",
    "a plane URL such as zmq: or memory:name, or none",
    "Event plane to publish to. By default the one that Dynamo's variables below name, or none; `none` for "
    "no plane whatever they say.",
    Feature.RELAY,
)

TABLE: tuple[Variable, ...] = (
    FPM_TRACE, OUTPUT_PATH, MODE, SAMPLE_INTERVAL_MS, ROLL_BYTES, MAX_SEGMENTS, PRODUCER_ID, FSYNC,
    TRACE_QUEUE, DRAIN_SECONDS, METRIC_PORT, WORKER_ID, BIND_HOST, HEARTBEAT, HEARTBEAT_INTERVAL_MS,
    PUBLISH_QUEUE, SEND_HWM, STRICT, COUNT_PAUSED_SESSIONS, ENDPOINT, PLANE, *PLANE_TABLE,
    *BENCH_TABLE,
)  # fmt: skip
