"""What a type checker sees of the public names: each line's comment is the type that mypy must reveal."""

from typing import reveal_type

import forwardpass
from forwardpass import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
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
