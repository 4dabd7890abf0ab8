"""The admin API: JSON over HTTP on a unix socket that only the agent's user can open.

Invariants: every answer is made from one snapshot, by `views.py`. An answer that grows with the cluster is written in
slices, so that an ADD gets its turn in between. Every error is JSON too: `{"error": one line}`. Only POST changes
anything: a resync by an event that the controller handles like any other, a trace nothing that outlives it.

    GET  /status                                 the node, its ranges, counts, what is wrong
    GET  /services, /services/NAMESPACE/NAME     frontends, backends, what the data plane holds of them
    GET  /pods                                   attachments
    GET  /interface?namespace=NAMESPACE&pod=NAME&interface=NAME
                                                 what leads to a pod: the node's end of its link
    GET  /explain/service/NAMESPACE/NAME         each frontend, its backends and where they are, what is left out
    GET  /explain/packet?from=SOURCE&to=IP:PORT/PROTOCOL
                                                 what this node does with such a packet
    GET  /history?since=NUMBER&limit=NUMBER      transactions, oldest first; with wait=SECONDS it waits for the next
    GET  /verify                                 what the network holds otherwise than it should; touches nothing
    POST /resync                                 read everything, and make it right
    POST /trace?from=SOURCE&to=IP:PORT/PROTOCOL&timeout=SECONDS
                                                 sends such a packet, and tells its way; ends when the client goes
    GET  /healthz, /readyz                       200, or 503 with the reason
    GET  /metrics                                for Prometheus, in its own form

The last three may be had over TCP too; nothing else is, but for what `podwire.statistics.answers` adds.
"""
