"""Knows the environment variables of event planes. All are Dynamo's: a deployment's settings just work."""

from __future__ import annotations

from forwardpass.config import parse
from forwardpass.config.variable import BOOLEAN, Feature, Variable

__all__ = [
    "DISCOVERY_BACKEND",
    "ETCD_ENDPOINTS",
    "ETCD_LEASE_TTL",
    "EVENT_PLANE",
    "EVENT_PLANE_HOST",
    "FILE_KV",
    "NATS_CREDENTIALS_FILE",
    "NATS_NKEY",
    "NATS_PASSWORD",
    "NATS_SERVER",
    "NATS_TLS_CA",
    "NATS_TOKEN",
    "NATS_USERNAME",
    "PLANE_TABLE",
    "SUBSCRIBER_CAPACITY",
    "ZMQ_BROKER_ENABLED",
    "ZMQ_BROKER_URL",
]

EVENT_PLANE = Variable(
    "DYN_EVENT_PLANE",
    parse.exact(("", "zmq", "nats")),
    "",
    "zmq or nats, in lower case",
    "The event plane of a Dynamo deployment; one that is named here or below is joined without --plane.",
    Feature.PLANE,
)
EVENT_PLANE_HOST = Variable(
    "DYN_EVENT_PLANE_HOST",
    parse.text,
    "",
    "an IP address or the name of a network interface",
    "Address that publishers of the ZMQ plane bind and advertise; this machine's own by default.",
    Feature.PLANE,
)
DISCOVERY_BACKEND = Variable(
    "DYN_DISCOVERY_BACKEND",
    parse.choice(("", "etcd", "file", "mem", "kubernetes")),
    "",
    "one of etcd, file, mem, kubernetes",
    "Where publishers of the ZMQ plane find each other; etcd by default, as in Dynamo.",
    Feature.PLANE,
)
FILE_KV = Variable(
    "DYN_FILE_KV",
    parse.text,
    "",
    "a folder",
    "Folder of file discovery; dynamo_store_kv in the temporary folder by default.",
    Feature.PLANE,
)
ETCD_ENDPOINTS = Variable(
    "ETCD_ENDPOINTS",
    parse.text,
    "http://localhost:2379",
    "URLs such as http://host:2379, with commas between them",
    "Servers of etcd discovery.",
    Feature.PLANE,
)
ETCD_LEASE_TTL = Variable(
    "ETCD_LEASE_TTL",
    parse.integer(1, 86_400),
    30,
    "an integer in 1 … 86400",
    "Seconds until etcd forgets a publisher that died.",
    Feature.PLANE,
)
ZMQ_BROKER_URL = Variable(
    "DYN_ZMQ_BROKER_URL",
    parse.text,
    "",
    "xsub=<url>[;<url>…],xpub=<url>[;<url>…]",
    "Brokers of the ZMQ plane, instead of discovery.",
    Feature.PLANE,
)
ZMQ_BROKER_ENABLED = Variable(
    "DYN_ZMQ_BROKER_ENABLED",
    parse.boolean,
    False,
    BOOLEAN,
    "Whether brokers of the ZMQ plane are looked up in discovery.",
    Feature.PLANE,
)
SUBSCRIBER_CAPACITY = Variable(
    "DYN_ZMQ_EVENT_SUBSCRIBER_CHANNEL_CAPACITY",
    parse.integer(1, 10_000_000),
    100_000,
    "an integer in 1 … 10000000",
    "Messages of an event plane that wait for a slow reader before the oldest go.",
    Feature.PLANE,
)
NATS_SERVER = Variable(
    "NATS_SERVER",
    parse.text,
    "nats://localhost:4222",
    "URLs such as nats://host:4222, with commas between them",
    "Servers of the NATS plane.",
    Feature.PLANE,
)
NATS_USERNAME = Variable(
    "NATS_AUTH_USERNAME",
    parse.text,
    "",
    "a name",
    "User at the NATS servers; goes with the password.",
    Feature.PLANE,
)
NATS_PASSWORD = Variable(
    "NATS_AUTH_PASSWORD",
    parse.verbatim,
    "",
    "a password",
    "Password at the NATS servers.",
    Feature.PLANE,
    secret=True,
)
NATS_TOKEN = Variable(
    "NATS_AUTH_TOKEN",
    parse.text,
    "",
    "a token",
    "Token for the NATS servers, where there is no user.",
    Feature.PLANE,
    secret=True,
)
NATS_NKEY = Variable(
    "NATS_AUTH_NKEY",
    parse.text,
    "",
    "an nkey seed",
    "Seed of the nkey for the NATS servers, where there is no token.",
    Feature.PLANE,
    secret=True,
)
NATS_CREDENTIALS_FILE = Variable(
    "NATS_AUTH_CREDENTIALS_FILE",
    parse.text,
    "",
    "a file",
    "Credentials file for the NATS servers, where there is no nkey.",
    Feature.PLANE,
)
NATS_TLS_CA = Variable(
    "NATS_TLS_CA_CERT_PATH",
    parse.text,
    "",
    "a PEM file",
    "Certificates of the authorities that may vouch for the NATS servers.",
    Feature.PLANE,
)

PLANE_TABLE: tuple[Variable, ...] = (
    EVENT_PLANE,
    EVENT_PLANE_HOST,
    DISCOVERY_BACKEND,
    FILE_KV,
    ETCD_ENDPOINTS,
    ETCD_LEASE_TTL,
    ZMQ_BROKER_URL,
    ZMQ_BROKER_ENABLED,
    SUBSCRIBER_CAPACITY,
    NATS_SERVER,
    NATS_USERNAME,
    NATS_PASSWORD,
    NATS_TOKEN,
    NATS_NKEY,
    NATS_CREDENTIALS_FILE,
    NATS_TLS_CA,
)
"""In the order in which they are documented."""
