"""Variables of each rank, from its own interfaces and devices: they differ between machines.

Sources: vLLM 0.32 for its own; NCCL's documentation; what eugr's and sparkrun's scripts set for
linked DGX Sparks (docs/fleet.md holds ours against theirs, line by line).
"""

from slipstream.fleet.network.topology import GroupNetwork
from slipstream.planning.settings import Choice

RING_ALGORITHM_FROM = 4
_RING = {
    "NCCL_NET_PLUGIN": ("none", "NCCL's own RDMA code knows subnets, a plug-in may not"),
    "NCCL_IB_SUBNET_AWARE_ROUTING": ("1", "each cable is a subnet of its own, without a switch"),
    "NCCL_IB_MERGE_NICS": ("0", "the ports of a machine lead to different machines"),
}


def decide_lone_variables() -> dict[str, Choice[str]]:
    """Choose the variables of a group on one machine: its processes meet on loopback.

    vLLM would bind their sockets, which ask for no key, to the address of the default route.
    """
    why = "all its processes are on this machine, and nobody else is to reach their sockets"
    return {
        "VLLM_HOST_IP": Choice("127.0.0.1", "hardware", why),
        "GLOO_SOCKET_IFNAME": Choice("lo", "hardware", why),
    }


def decide_variables(
    network: GroupNetwork, machine: str, *, accelerated: bool
) -> dict[str, Choice[str]]:
    """Choose NCCL's variables for a rank; vLLM's own and Gloo's are `planning.spreading`'s."""
    if not accelerated:
        return {}
    name = network.interfaces[machine].name
    why = "NCCL's bootstrap; = takes it for the whole name, not a beginning"
    chosen = {"NCCL_SOCKET_IFNAME": Choice(f"={name}", "hardware", why)}
    if network.shape == "tcp":
        why = "no RDMA between all members was seen, and NCCL is not to try it"
        return chosen | {"NCCL_NET": Choice("Socket", "hardware", why)}
    return chosen | _decide_rdma(network, machine)


def _decide_rdma(network: GroupNetwork, machine: str) -> dict[str, Choice[str]]:
    devices = network.devices[machine]
    names = ",".join(device.rdma_device or "" for device in devices)
    chosen = {
        "NCCL_NET": Choice("IB", "hardware", "fail rather than fall back to TCP without a word"),
        "NCCL_IB_HCA": Choice(
            f"={names}", "hardware", "the devices whose links were measured; others have no cable"
        ),
        "NCCL_IGNORE_CPU_AFFINITY": Choice(
            "1", "default", "NCCL's threads take any core (eugr, sparkrun)"
        ),
    }
    if network.shape == "ring":
        chosen |= {name: Choice(value, "hardware", why) for name, (value, why) in _RING.items()}
        if len(network.interfaces) >= RING_ALGORITHM_FROM:
            chosen["NCCL_ALGO"] = Choice(
                "Ring", "hardware", "other algorithms connect machines without a cable between"
            )
        return chosen
    chosen["NCCL_CROSS_NIC"] = Choice(
        "1", "default", "both halves of a port lead to the same machine (sparkrun)"
    )
    indices = {device.gid_index for device in devices}
    if len(indices) == 1 and (index := indices.pop()) is not None:
        chosen["NCCL_IB_GID_INDEX"] = Choice(
            str(index), "hardware", "the RoCE v2 entry of these devices' IPv4 addresses"
        )
    return chosen
