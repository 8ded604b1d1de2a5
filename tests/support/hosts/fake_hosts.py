"""The /sys and /proc files of other machines, for tests of what runs on which core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

NODE, CPU = "sys/devices/system/node", "sys/devices/system/cpu"


def host(
    root: Path,
    nodes: Mapping[int, Sequence[tuple[int, ...]]],
    *,
    packages: Mapping[int, int] | None = None,
    distances: Sequence[Sequence[int]] = (),
    memory: Mapping[int, int] | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """Writes the files of a host and returns their root.

    Args:
        root: The folder to write to.
        nodes: The cores of each NUMA node, as tuples of hardware threads. Empty for a node that is only memory.
        packages: The socket of each node. By default each node is a socket.
        distances: A row for each node, in their order.
        memory: The memory of each node in kB.
        more: Further files, by path.
    """
    files: dict[str, str] = {f"{NODE}/online": ",".join(map(str, nodes))}
    threads = sorted(cpu for cores in nodes.values() for core in cores for cpu in core)
    files[f"{CPU}/online"] = ",".join(map(str, threads))
    for index, (node, cores) in enumerate(nodes.items()):
        files[f"{NODE}/node{node}/cpulist"] = ",".join(str(cpu) for core in cores for cpu in core)
        size = (memory or {}).get(node, 1000)
        if size:
            files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:       {size} kB\n"
        if distances:
            files[f"{NODE}/node{node}/distance"] = " ".join(map(str, distances[index]))
        for core in cores:
            for cpu in core:
                files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = ",".join(map(str, core))
                files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = str((packages or {}).get(node, node))
    for path, text in {**files, **(more or {})}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return str(root)


def threads(root: str) -> set[int]:
    """Returns every hardware thread of the host, as an affinity mask."""
    return {int(cpu) for cpu in (Path(root) / CPU / "online").read_text().split(",")}


def runs(first: int, count: int, siblings_at: int = 0) -> list[tuple[int, ...]]:
    """Returns `count` cores from `first` on. `siblings_at`, if not 0, is the offset of each core's second thread."""
    return [(cpu, cpu + siblings_at) if siblings_at else (cpu,) for cpu in range(first, first + count)]


def two_sockets(root: Path) -> str:
    """Writes two sockets of four cores with two threads, with the usual numbers: 0-3,8-11 and 4-7,12-15."""
    nodes = {0: runs(0, 4, 8), 1: runs(4, 4, 8)}
    return host(root, nodes, distances=[[10, 21], [21, 10]])


def interleaved(root: Path) -> str:
    """Writes two sockets with alternating core numbers: even ones on the first, odd ones on the second."""
    nodes = {0: [(cpu,) for cpu in range(0, 8, 2)], 1: [(cpu,) for cpu in range(1, 8, 2)]}
    return host(root, nodes, distances=[[10, 21], [21, 10]])


def hybrid(root: Path) -> str:
    """Writes a desktop processor: six fast cores with two threads, eight slow cores with one."""
    cores = [(2 * core, 2 * core + 1) for core in range(6)] + [(cpu,) for cpu in range(12, 20)]
    kinds = {"sys/devices/cpu_core/cpus": "0-11", "sys/devices/cpu_atom/cpus": "12-19"}
    return host(root, {0: cores}, distances=[[10]], more=kinds)


def hybrid_arm(root: Path) -> str:
    """Writes two fast and four slow cores, which differ in their capacities."""
    capacity = {f"{CPU}/cpu{cpu}/cpu_capacity": "1024" if cpu >= 4 else "446" for cpu in range(6)}
    return host(root, {0: runs(0, 6)}, distances=[[10]], more=capacity)


def hbm_flat(root: Path) -> str:
    """Writes two sockets with high-bandwidth memory as nodes of their own: 2 near socket 0, 3 near socket 1."""
    nodes = {0: runs(0, 4), 1: runs(4, 4), 2: [], 3: []}
    rows = [[10, 21, 13, 23], [21, 10, 23, 13], [13, 23, 10, 23], [23, 13, 23, 10]]
    return host(root, nodes, distances=rows, memory={0: 512, 1: 512, 2: 64, 3: 64})


def hbm_cache(root: Path) -> str:
    """Writes the same machine with that memory as a cache: no node shows it."""
    return host(root, {0: runs(0, 4), 1: runs(4, 4)}, distances=[[10, 21], [21, 10]])


def expander(root: Path) -> str:
    """Writes a socket with memory behind a bus (CXL), which is slower than its own by the firmware's bandwidths."""
    speed = {
        f"{NODE}/node{node}/access0/initiators/read_bandwidth": str(mb) for node, mb in ((0, 250_000), (1, 30_000))
    }
    return host(root, {0: runs(0, 4), 1: []}, distances=[[10, 14], [14, 10]], more=speed)


def clusters(root: Path) -> str:
    """Writes two sockets of four clusters (SNC-4) of three cores. Node numbers alternate between the sockets."""
    nodes = {node: runs(3 * node, 3) for node in range(8)}
    near = [[10 if a == b else 12 if a % 2 == b % 2 else 21 for b in range(8)] for a in range(8)]
    return host(root, nodes, packages={node: node % 2 for node in range(8)}, distances=near)


def eight_gpus(root: Path) -> str:
    """Writes two sockets of 16 cores. NVIDIA devices 0 to 3 are on the second socket's buses, 4 to 7 on the first's."""
    more = {}
    for gpu in range(8):
        device = f"sys/bus/pci/devices/0000:{0x10 + 0x10 * gpu:02x}:00.0"
        more |= {f"{device}/vendor": "0x10de", f"{device}/class": "0x030200"}
        more[f"{device}/numa_node"] = "1" if gpu < 4 else "0"
    more |= {"sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086", "sys/bus/pci/devices/0000:00:1f.0/class": "0x060100"}
    return host(root, {0: runs(0, 16, 32), 1: runs(16, 16, 32)}, distances=[[10, 21], [21, 10]], more=more)
