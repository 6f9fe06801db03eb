"""What a type checker sees of the public names: each line's comment is the type that mypy must reveal."""

from typing import reveal_type

import forwardpass
from forwardpass import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from forwardpass.analyze.summary import summarize
from forwardpass.config.settings import PublisherSettings, Sources, TraceSettings
from forwardpass.publish.publisher import open_publisher
from forwardpass.trace.policy import decide
from forwardpass.trace.reader import find_segments, read_trace
from forwardpass.trace.registry import TraceRegistry
from forwardpass.wire.codec import decode_full, decode_strict, stamp
from forwardpass.wire.frames import join, split
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.ports import PortBlock, ephemeral_warning, parse_port_range
from forwardpass.wire.tally import Tally, sum_and_variance
from forwardpass.wire.validate import validate_payload

metrics = ForwardPassMetrics(worker_id="1", wall_time=0.1)
reveal_type(metrics)  # forwardpass.wire.schema.ForwardPassMetrics
reveal_type(metrics.version)  # int
reveal_type(metrics.worker_id)  # str
reveal_type(metrics.wall_time)  # float
reveal_type(metrics.scheduled_requests)  # forwardpass.wire.schema.ScheduledRequestMetrics
reveal_type(metrics.queued_requests)  # forwardpass.wire.schema.QueuedRequestMetrics
reveal_type(ScheduledRequestMetrics().sum_prefill_kv_tokens)  # int
reveal_type(QueuedRequestMetrics().var_decode_kv_tokens)  # float
reveal_type(forwardpass.FPM_VERSION)  # int
reveal_type(forwardpass.__version__)  # str
reveal_type(forwardpass.encode(metrics))  # bytes
reveal_type(forwardpass.derive(metrics).tokens_per_second)  # float | None
subscriber = forwardpass.FpmSubscriber("memory:name")
reveal_type(subscriber.recv())  # bytes | None
reveal_type(subscriber.recv_envelope())  # forwardpass.plane.base.PlaneMessage | None
reveal_type(subscriber.get_recent_stats())  # dict[tuple[str, int], bytes]
reveal_type(subscriber.get_model_cards())  # dict[str, str]
reveal_type(forwardpass.decode(b""))  # forwardpass.wire.schema.ForwardPassMetrics | None
reveal_type(decode_strict(b""))  # forwardpass.wire.schema.ForwardPassMetrics
reveal_type(decode_full(b"").metrics)  # forwardpass.wire.schema.ForwardPassMetrics
reveal_type(decode_full(b"").unknown)  # dict[str, Any]
reveal_type(stamp(metrics, 1))  # forwardpass.wire.schema.ForwardPassMetrics
reveal_type(validate_payload(b""))  # dict[str, Any]
reveal_type(join(1, b""))  # tuple[bytes, bytes, bytes]
reveal_type(split([b"", b"", b""]).seq)  # int
reveal_type(split([b"", b"", b""]).payload)  # bytes
reveal_type(sum_and_variance([1]))  # tuple[int, float]
reveal_type(Tally.of([1]).variance)  # float
reveal_type(PortBlock.of(1, 1))  # forwardpass.wire.ports.PortBlock
reveal_type(parse_port_range(""))  # forwardpass.wire.ports.PortBlock | None
reveal_type(ephemeral_warning(1, 1, None))  # str | None
reveal_type(str(Endpoint.parse("a.b.c")))  # str

reveal_type(PublisherSettings.load(Sources({})))  # forwardpass.config.settings.PublisherSettings
publisher = open_publisher(PublisherSettings(), dp_rank=0)
reveal_type(publisher)  # forwardpass.publish.publisher.FpmPublisher | forwardpass.publish.null.NullPublisher
reveal_type(publisher.publish(metrics))  # bool
reveal_type(publisher.shutdown().undelivered)  # int
reveal_type(publisher.counts().dropped)  # dict[str, int]
reveal_type(decide(Sources({})).settings)  # forwardpass.config.settings.TraceSettings | None
handle = TraceRegistry(TraceSettings()).acquire("1", Endpoint())
reveal_type(handle)  # forwardpass.trace.registry.TraceHandle | None
if handle is not None:
    reveal_type(handle.offer(b""))  # bool
    reveal_type(handle.offer_many([b""]))  # int
    reveal_type(handle.files())  # tuple[str, ...]
reveal_type(next(forwardpass.read_trace("prefix")))  # forwardpass.trace.record.TraceRecord
for record in read_trace("prefix"):
    reveal_type(record.metrics)  # forwardpass.wire.schema.ForwardPassMetrics
    reveal_type(record.observed_at_unix_ms)  # int
reveal_type(find_segments("prefix"))  # list[pathlib.Path]
reveal_type(summarize(read_trace("prefix")))  # forwardpass.analyze.summary.Summary
