"""Traffic of Services and pods for people: tables. Pure.

Invariants: as for `podwire.cli.tables`. Bytes are told in decimal units; programs take `-o json`.
"""

from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table

from podwire.cli.tables import columns
from podwire.model.addresses import parse_address, show_host_port
from podwire.statistics.views import FrontendStatistics, PodStatisticsList, ServiceStatisticsList, Traffic

_TRAFFIC = ("RECEIVED", "PACKETS", "SENT", "PACKETS")


def services(seen: ServiceStatisticsList, *, full: bool) -> RenderableType:
    """`full`: each frontend, too. Where packets are not counted there are no columns for them."""
    if not seen.services:
        return "no Services"
    names = ("NAMESPACE", "NAME", *(("FRONTEND",) if full else ()))
    counted = any(it.traffic is not None for it in seen.services)
    table = _numbers(*names, numbers=("CONNECTIONS", *(_TRAFFIC if counted else ())))
    for it in seen.services:
        table.add_row(it.namespace, it.name, *(("all",) if full else ()), str(it.connections), *_cells(it.traffic))
        for frontend in it.frontends if full else ():
            table.add_row(it.namespace, it.name, _name(frontend), str(frontend.connections), *_cells(frontend.traffic))
    return table


def pods(seen: PodStatisticsList) -> RenderableType:
    if not seen.pods:
        return "no pods"
    table = _numbers("NAMESPACE", "NAME", "INTERFACE", "LINK", numbers=_TRAFFIC)
    for it in seen.pods:
        table.add_row(it.namespace, it.name, it.interface, it.link, *_cells(it.traffic))
    return table


def _numbers(*names: str, numbers: tuple[str, ...]) -> Table:
    table = columns(*names, *numbers)
    for column in table.columns[len(names) :]:
        column.justify, column.no_wrap = "right", True
    return table


def _cells(it: Traffic | None) -> tuple[str, ...]:
    if it is None:
        return ()
    return decimal(it.received_bytes), str(it.received_packets), decimal(it.sent_bytes), str(it.sent_packets)


def _name(it: FrontendStatistics) -> str:
    return f"{show_host_port(parse_address(it.address), it.port)}/{it.protocol}"
