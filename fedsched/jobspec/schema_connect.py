"""The `connect` block of a service: Consul's mesh. Read and kept, never acted upon."""

from __future__ import annotations

from typing import Final

from fedsched.jobspec.schema import Content, Kind, Nested, Schema, Shape, of_record, of_table
from fedsched.model.resources import Resources
from fedsched.model.task import LogConfig
from fedsched.model.volume import VolumeMount

TEXT, WHOLE, TRUTH, TEXTS, DURATION = Kind.TEXT, Kind.WHOLE, Kind.TRUTH, Kind.TEXTS, Kind.DURATION
MANY = Shape.MANY

_MESH_GATEWAY: Final = of_table("mesh_gateway", {"mode": ("Mode", TEXT)})
_UPSTREAM: Final = of_table(
    "upstreams",
    {
        "destination_name": ("DestinationName", TEXT),
        "destination_namespace": ("DestinationNamespace", TEXT),
        "destination_partition": ("DestinationPartition", TEXT),
        "destination_peer": ("DestinationPeer", TEXT),
        "destination_type": ("DestinationType", TEXT),
        "datacenter": ("Datacenter", TEXT),
        "local_bind_address": ("LocalBindAddress", TEXT),
        "local_bind_port": ("LocalBindPort", WHOLE),
        "local_bind_socket_path": ("LocalBindSocketPath", TEXT),
        "local_bind_socket_mode": ("LocalBindSocketMode", TEXT),
    },
    (Nested("mesh_gateway", "MeshGateway", _MESH_GATEWAY), Nested("config", "Config", Content.FREE)),
)
_EXPOSED_PATH: Final = of_table(
    "path",
    {
        "path": ("Path", TEXT),
        "protocol": ("Protocol", TEXT),
        "local_path_port": ("LocalPathPort", WHOLE),
        "listener_port": ("ListenerPort", TEXT),
    },
)
_TRANSPARENT_PROXY: Final = of_table(
    "transparent_proxy",
    {
        "uid": ("UID", TEXT),
        "outbound_port": ("OutboundPort", WHOLE),
        "exclude_inbound_ports": ("ExcludeInboundPorts", TEXTS),
        "exclude_outbound_ports": ("ExcludeOutboundPorts", TEXTS),
        "exclude_outbound_cidrs": ("ExcludeOutboundCIDRs", TEXTS),
        "exclude_uids": ("ExcludeUIDs", TEXTS),
        "no_dns": ("NoDNS", TRUTH),
    },
)
_PROXY: Final = of_table(
    "proxy",
    {
        "local_service_address": ("LocalServiceAddress", TEXT),
        "local_service_port": ("LocalServicePort", WHOLE),
    },
    (
        Nested("upstreams", "Upstreams", _UPSTREAM, MANY),
        Nested("expose", "Expose", of_table("expose", {}, (Nested("path", "Paths", _EXPOSED_PATH, MANY),))),
        Nested("transparent_proxy", "TransparentProxy", _TRANSPARENT_PROXY),
        Nested("config", "Config", Content.FREE),
    ),
)
_SIDECAR_SERVICE: Final = of_table(
    "sidecar_service",
    {
        "tags": ("Tags", TEXTS),
        "port": ("Port", TEXT),
        "disable_default_tcp_check": ("DisableDefaultTCPCheck", TRUTH),
    },
    (Nested("meta", "Meta", Content.TEXT_MAP), Nested("proxy", "Proxy", _PROXY)),
)
_SIDECAR_TASK: Final = of_table(
    "sidecar_task",
    {
        "name": ("Name", TEXT),
        "driver": ("Driver", TEXT),
        "user": ("User", TEXT),
        "kill_timeout": ("KillTimeout", DURATION),
        "kill_signal": ("KillSignal", TEXT),
        "shutdown_delay": ("ShutdownDelay", DURATION),
    },
    (
        Nested("config", "Config", Content.FREE),
        Nested("env", "Env", Content.TEXT_MAP),
        Nested("meta", "Meta", Content.TEXT_MAP),
        Nested(
            "resources",
            "Resources",
            of_record(Resources, "resources", keys={"memory_mb": "memory", "memory_max_mb": "memory_max"}),
        ),
        Nested("logs", "LogConfig", of_record(LogConfig, "logs", keys={"max_file_size_mb": "max_file_size"})),
        Nested("volume_mount", "VolumeMounts", of_record(VolumeMount, "volume_mount"), MANY),
    ),
)
_BIND_ADDRESS: Final = of_table("envoy_gateway_bind_addresses", {"address": ("Address", TEXT), "port": ("Port", WHOLE)})
_GATEWAY_PROXY: Final = of_table(
    "proxy",
    {
        "connect_timeout": ("ConnectTimeout", DURATION),
        "envoy_gateway_bind_tagged_addresses": ("EnvoyGatewayBindTaggedAddresses", TRUTH),
        "envoy_gateway_no_default_bind": ("EnvoyGatewayNoDefaultBind", TRUTH),
        "envoy_dns_discovery_type": ("EnvoyDNSDiscoveryType", TEXT),
    },
    (
        Nested("envoy_gateway_bind_addresses", "EnvoyGatewayBindAddresses", _BIND_ADDRESS, Shape.BY_LABEL, "Name"),
        Nested("config", "Config", Content.FREE),
    ),
)
_HEADER_CHANGES: Final = of_table(
    "request_headers",
    {"remove": ("Remove", TEXTS)},
    (Nested("add", "Add", Content.TEXT_MAP), Nested("set", "Set", Content.TEXT_MAP)),
)
_SDS: Final = of_table("sds", {"cluster_name": ("ClusterName", TEXT), "cert_resource": ("CertResource", TEXT)})
_GATEWAY_TLS: Final = of_table(
    "tls",
    {
        "enabled": ("Enabled", TRUTH),
        "tls_min_version": ("TLSMinVersion", TEXT),
        "tls_max_version": ("TLSMaxVersion", TEXT),
        "cipher_suites": ("CipherSuites", TEXTS),
    },
    (Nested("sds", "SDS", _SDS),),
)
_INGRESS_SERVICE: Final = of_table(
    "service",
    {
        "name": ("Name", TEXT),
        "hosts": ("Hosts", TEXTS),
        "max_connections": ("MaxConnections", WHOLE),
        "max_pending_requests": ("MaxPendingRequests", WHOLE),
        "max_concurrent_requests": ("MaxConcurrentRequests", WHOLE),
    },
    (
        Nested("tls", "TLS", of_table("tls", {}, (Nested("sds", "SDS", _SDS),))),
        Nested("request_headers", "RequestHeaders", _HEADER_CHANGES),
        Nested("response_headers", "ResponseHeaders", _HEADER_CHANGES),
    ),
)
_LISTENER: Final = of_table(
    "listener",
    {"port": ("Port", WHOLE), "protocol": ("Protocol", TEXT)},
    (Nested("service", "Services", _INGRESS_SERVICE, MANY),),
)
_INGRESS: Final = of_table(
    "ingress", {}, (Nested("tls", "TLS", _GATEWAY_TLS), Nested("listener", "Listeners", _LISTENER, MANY))
)
_LINKED_SERVICE: Final = of_table(
    "service",
    {
        "name": ("Name", TEXT),
        "ca_file": ("CAFile", TEXT),
        "cert_file": ("CertFile", TEXT),
        "key_file": ("KeyFile", TEXT),
        "sni": ("SNI", TEXT),
    },
)
_GATEWAY: Final = of_table(
    "gateway",
    {},
    (
        Nested("proxy", "Proxy", _GATEWAY_PROXY),
        Nested("ingress", "Ingress", _INGRESS),
        Nested(
            "terminating",
            "Terminating",
            of_table("terminating", {}, (Nested("service", "Services", _LINKED_SERVICE, MANY),)),
        ),
        Nested("mesh", "Mesh", of_table("mesh", {})),
    ),
)
CONNECT: Final[Schema] = of_table(
    "connect",
    {"native": ("Native", TRUTH)},
    (
        Nested("sidecar_service", "SidecarService", _SIDECAR_SERVICE),
        Nested("sidecar_task", "SidecarTask", _SIDECAR_TASK),
        Nested("gateway", "Gateway", _GATEWAY),
    ),
)
