from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Route(_message.Message):
    __slots__ = ("name", "nexthop", "destinationCIDR")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEXTHOP_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONCIDR_FIELD_NUMBER: _ClassVar[int]
    name: str
    nexthop: str
    destinationCIDR: str
    def __init__(self, name: _Optional[str] = ..., nexthop: _Optional[str] = ..., destinationCIDR: _Optional[str] = ...) -> None: ...

class Subnet(_message.Message):
    __slots__ = ("name", "uid", "cidr", "gateway", "tenantid", "dnsservers", "routes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    CIDR_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    TENANTID_FIELD_NUMBER: _ClassVar[int]
    DNSSERVERS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    cidr: str
    gateway: str
    tenantid: str
    dnsservers: _containers.RepeatedScalarFieldContainer[str]
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., cidr: _Optional[str] = ..., gateway: _Optional[str] = ..., tenantid: _Optional[str] = ..., dnsservers: _Optional[_Iterable[str]] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ...) -> None: ...

class Network(_message.Message):
    __slots__ = ("name", "uid", "tenantID", "segmentID", "subnets", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    TENANTID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTID_FIELD_NUMBER: _ClassVar[int]
    SUBNETS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    tenantID: str
    segmentID: int
    subnets: _containers.RepeatedCompositeFieldContainer[Subnet]
    status: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., tenantID: _Optional[str] = ..., segmentID: _Optional[int] = ..., subnets: _Optional[_Iterable[_Union[Subnet, _Mapping]]] = ..., status: _Optional[str] = ...) -> None: ...

class HostPort(_message.Message):
    __slots__ = ("name", "ipaddress", "servicePort", "targetPort")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IPADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVICEPORT_FIELD_NUMBER: _ClassVar[int]
    TARGETPORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    ipaddress: str
    servicePort: int
    targetPort: int
    def __init__(self, name: _Optional[str] = ..., ipaddress: _Optional[str] = ..., servicePort: _Optional[int] = ..., targetPort: _Optional[int] = ...) -> None: ...

class LoadBalancer(_message.Message):
    __slots__ = ("name", "uid", "vip", "loadBalanceType", "status", "tenantID", "externalIPs", "subnets", "hosts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VIP_FIELD_NUMBER: _ClassVar[int]
    LOADBALANCETYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENANTID_FIELD_NUMBER: _ClassVar[int]
    EXTERNALIPS_FIELD_NUMBER: _ClassVar[int]
    SUBNETS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    vip: str
    loadBalanceType: str
    status: str
    tenantID: str
    externalIPs: _containers.RepeatedScalarFieldContainer[str]
    subnets: _containers.RepeatedCompositeFieldContainer[Subnet]
    hosts: _containers.RepeatedCompositeFieldContainer[HostPort]
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., vip: _Optional[str] = ..., loadBalanceType: _Optional[str] = ..., status: _Optional[str] = ..., tenantID: _Optional[str] = ..., externalIPs: _Optional[_Iterable[str]] = ..., subnets: _Optional[_Iterable[_Union[Subnet, _Mapping]]] = ..., hosts: _Optional[_Iterable[_Union[HostPort, _Mapping]]] = ...) -> None: ...

class CommonResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class ActiveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ActivateResponse(_message.Message):
    __slots__ = ("result", "error")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    result: bool
    error: str
    def __init__(self, result: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class CheckTenantIDRequest(_message.Message):
    __slots__ = ("tenantID",)
    TENANTID_FIELD_NUMBER: _ClassVar[int]
    tenantID: str
    def __init__(self, tenantID: _Optional[str] = ...) -> None: ...

class CheckTenantIDResponse(_message.Message):
    __slots__ = ("result", "error")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    result: bool
    error: str
    def __init__(self, result: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class GetNetworkRequest(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class GetNetworkResponse(_message.Message):
    __slots__ = ("network", "error")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    network: Network
    error: str
    def __init__(self, network: _Optional[_Union[Network, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class CreateNetworkRequest(_message.Message):
    __slots__ = ("network",)
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    network: Network
    def __init__(self, network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class UpdateNetworkRequest(_message.Message):
    __slots__ = ("network",)
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    network: Network
    def __init__(self, network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class DeleteNetworkRequest(_message.Message):
    __slots__ = ("networkName",)
    NETWORKNAME_FIELD_NUMBER: _ClassVar[int]
    networkName: str
    def __init__(self, networkName: _Optional[str] = ...) -> None: ...

class GetLoadBalancerRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetLoadBalancerResponse(_message.Message):
    __slots__ = ("loadBalancer", "error")
    LOADBALANCER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    loadBalancer: LoadBalancer
    error: str
    def __init__(self, loadBalancer: _Optional[_Union[LoadBalancer, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class CreateLoadBalancerRequest(_message.Message):
    __slots__ = ("loadBalancer", "affinity")
    LOADBALANCER_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    loadBalancer: LoadBalancer
    affinity: str
    def __init__(self, loadBalancer: _Optional[_Union[LoadBalancer, _Mapping]] = ..., affinity: _Optional[str] = ...) -> None: ...

class CreateLoadBalancerResponse(_message.Message):
    __slots__ = ("vip", "error")
    VIP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    vip: str
    error: str
    def __init__(self, vip: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class UpdateLoadBalancerRequest(_message.Message):
    __slots__ = ("name", "externalIPs", "hosts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXTERNALIPS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    externalIPs: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedCompositeFieldContainer[HostPort]
    def __init__(self, name: _Optional[str] = ..., externalIPs: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[_Union[HostPort, _Mapping]]] = ...) -> None: ...

class UpdateLoadBalancerResponse(_message.Message):
    __slots__ = ("vip", "error")
    VIP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    vip: str
    error: str
    def __init__(self, vip: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class DeleteLoadBalancerRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetupPodRequest(_message.Message):
    __slots__ = ("podName", "namespace", "containerRuntime", "podInfraContainerID", "network")
    PODNAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERRUNTIME_FIELD_NUMBER: _ClassVar[int]
    PODINFRACONTAINERID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    podName: str
    namespace: str
    containerRuntime: str
    podInfraContainerID: str
    network: Network
    def __init__(self, podName: _Optional[str] = ..., namespace: _Optional[str] = ..., containerRuntime: _Optional[str] = ..., podInfraContainerID: _Optional[str] = ..., network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class TeardownPodRequest(_message.Message):
    __slots__ = ("podName", "namespace", "containerRuntime", "podInfraContainerID", "network")
    PODNAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERRUNTIME_FIELD_NUMBER: _ClassVar[int]
    PODINFRACONTAINERID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    podName: str
    namespace: str
    containerRuntime: str
    podInfraContainerID: str
    network: Network
    def __init__(self, podName: _Optional[str] = ..., namespace: _Optional[str] = ..., containerRuntime: _Optional[str] = ..., podInfraContainerID: _Optional[str] = ..., network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class PodStatusRequest(_message.Message):
    __slots__ = ("podName", "namespace", "containerRuntime", "podInfraContainerID", "network")
    PODNAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONTAINERRUNTIME_FIELD_NUMBER: _ClassVar[int]
    PODINFRACONTAINERID_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    podName: str
    namespace: str
    containerRuntime: str
    podInfraContainerID: str
    network: Network
    def __init__(self, podName: _Optional[str] = ..., namespace: _Optional[str] = ..., containerRuntime: _Optional[str] = ..., podInfraContainerID: _Optional[str] = ..., network: _Optional[_Union[Network, _Mapping]] = ...) -> None: ...

class PodStatusResponse(_message.Message):
    __slots__ = ("ip", "error")
    IP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ip: str
    error: str
    def __init__(self, ip: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
