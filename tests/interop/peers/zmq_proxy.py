"""A plain broker of the ZMQ plane: ``zmq_proxy.py XSUB_PORT XPUB_PORT`` forwards until it is killed."""

from __future__ import annotations

import sys

import zmq

context = zmq.Context()
xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
xsub.bind(f"tcp://127.0.0.1:{sys.argv[1]}")
xpub.bind(f"tcp://127.0.0.1:{sys.argv[2]}")
print("ready", flush=True)
zmq.proxy(xsub, xpub)
