"""A process that holds a Ray cluster of several raylets on this machine, until its input ends.

``python cluster_host.py IP...``: the first address is the head's. Prints the address to join, then obeys lines:
``kill IP`` and ``add IP``, each answered by ``done``.
"""

import sys
from typing import Any

from ray.cluster_utils import Cluster


def options(ip: str) -> dict[str, Any]:
    return {"num_cpus": 2, "node_ip_address": ip, "object_store_memory": 100 << 20, "include_dashboard": False}


def main() -> None:
    head, *others = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args=options(head))
    nodes: dict[str, Any] = {ip: cluster.add_node(**options(ip)) for ip in others}
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        order, ip = line.split()
        if order == "kill":
            cluster.remove_node(nodes.pop(ip), allow_graceful=False)
        else:
            nodes[ip] = cluster.add_node(**options(ip))
            cluster.wait_for_nodes()
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
