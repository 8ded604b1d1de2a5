"""The CPU's memory figures, from fake /proc and cgroup trees and from the real kernel."""

from __future__ import annotations

import mmap
import os

import pytest
from support.devices.files import write_files

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.host import cgroup, process_memory
from opforge.accelerator.host.files import field
from opforge.accelerator.host.process_memory import ProcessMemory

KB, MB = 1 << 10, 1 << 20
MEMINFO = "MemTotal:       8000 kB\nMemFree:        1000 kB\nMemAvailable:   6000 kB\nHugePages_Total:   3\n"


def status(resident: int, peak: int) -> str:
    """Returns /proc/self/status with these figures in kB."""
    return f"Name:\tpython\nVmHWM:\t    {peak} kB\nVmRSS:\t    {resident} kB\n"


def test_the_resident_set_and_the_kernels_peak_are_in_bytes(tmp_path):
    cpu = CPUAccelerator(write_files(tmp_path, {"proc/self/status": status(resident=100, peak=300)}))
    assert cpu.get_rss() == cpu.memory_allocated() == cpu.memory_reserved() == cpu.memory_cached() == 100 * KB
    assert cpu.max_memory_allocated() == cpu.max_memory_reserved() == cpu.max_memory_cached() == 300 * KB
    assert cpu.memory_stats()["allocated_bytes.all.peak"] == 300 * KB


def test_the_peak_is_reset_by_the_kernel(tmp_path):
    files = {"proc/self/status": status(100, 300), "proc/self/clear_refs": ""}
    cpu = CPUAccelerator(write_files(tmp_path, files))
    cpu.reset_peak_memory_stats()
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


def test_if_the_kernel_forbids_a_reset_the_peak_is_the_largest_size_read_since(tmp_path):
    memory = ProcessMemory(write_files(tmp_path, {"proc/self/status": status(100, 300)}))
    memory.reset_peak()
    assert memory.peak() == 100 * KB
    write_files(tmp_path, {"proc/self/status": status(200, 300)})
    assert memory.peak() == 200 * KB
    write_files(tmp_path, {"proc/self/status": status(150, 300)})
    assert memory.peak() == 200 * KB


def test_if_the_kernel_forbids_a_reset_a_new_highest_peak_is_exact(tmp_path):
    memory = ProcessMemory(write_files(tmp_path, {"proc/self/status": status(100, 300)}))
    memory.reset_peak()
    write_files(tmp_path, {"proc/self/status": status(120, 999)})
    assert memory.peak() == 999 * KB


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_a_peak_between_two_calls_is_not_missed():
    memory = ProcessMemory()
    memory.reset_peak()
    before = memory.resident()
    block = mmap.mmap(-1, 64 * MB)
    block.write(b"x" * (64 * MB))
    block.close()
    assert memory.peak() >= before + 60 * MB or not os.access("/proc/self/clear_refs", os.W_OK)
    assert memory.resident() < before + 60 * MB


def test_without_limits_memory_is_that_of_the_machine(tmp_path):
    cpu = CPUAccelerator(write_files(tmp_path, {"proc/meminfo": MEMINFO}))
    assert cpu.total_memory() == 8000 * KB
    assert cpu.available_memory() == 6000 * KB
    assert cpu.mem_get_info() == (6000 * KB, 8000 * KB)


def test_a_version_2_limit_of_a_group_above_the_process_applies(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/slice/job/step\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/slice/job/step/memory.max": "max\n",
        "sys/fs/cgroup/slice/job/memory.max": f"{4000 * KB}\n",
        "sys/fs/cgroup/slice/job/memory.current": f"{3000 * KB}\n",
        "sys/fs/cgroup/slice/job/memory.stat": f"anon 5\ninactive_file {500 * KB}\n",
        "sys/fs/cgroup/slice/memory.max": f"{7000 * KB}\n",
    }
    cpu = CPUAccelerator(write_files(tmp_path, files))
    assert cpu.total_memory() == 4000 * KB
    assert cpu.available_memory() == 1500 * KB


def test_a_version_1_limit_in_a_containers_view_is_found(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "8:memory:/docker/abc\n0::/docker/abc\n",
        "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup none rw,memory\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2000 * KB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1800 * KB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {300 * KB}\n",
    }
    root = write_files(tmp_path, files)
    assert [limit.size for limit in cgroup.memory_limits(root)] == [2000 * KB]
    assert cgroup.memory_left(root) == 500 * KB


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path):
    files = {
        "proc/self/cgroup": "8:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert cgroup.memory_limits(write_files(tmp_path, files)) == []


def test_a_limit_that_changes_applies_within_a_second(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(process_memory, "monotonic", lambda: clock[0])
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{4000 * KB}\n",
        "sys/fs/cgroup/memory.current": f"{1000 * KB}\n",
    }
    cpu = CPUAccelerator(write_files(tmp_path, files))
    assert cpu.mem_get_info() == (3000 * KB, 4000 * KB)
    write_files(tmp_path, {"sys/fs/cgroup/memory.current": f"{1500 * KB}\n"})
    assert cpu.available_memory() == 2500 * KB, "what is used is read at each call"
    write_files(tmp_path, {"sys/fs/cgroup/memory.max": f"{2000 * KB}\n"})
    clock[0] += process_memory.LIMITS_LAST
    assert cpu.mem_get_info() == (500 * KB, 2000 * KB)
    write_files(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"})
    clock[0] += process_memory.LIMITS_LAST
    assert cpu.mem_get_info() == (6000 * KB, 8000 * KB)


def test_the_resident_set_is_read_in_pages_where_the_kernel_has_statm(tmp_path):
    page = os.sysconf("SC_PAGE_SIZE")
    files = {"proc/self/statm": "900 7 3 1 0 2 0\n", "proc/self/status": status(resident=1, peak=2)}
    memory = ProcessMemory(write_files(tmp_path, files))
    assert memory.resident() == 7 * page
    assert memory.peak() == 7 * page, "never below a size that was returned"
    write_files(tmp_path, {"proc/self/statm": "damaged"})
    assert memory.resident() == 1 * KB


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("VmRSS:\t  12 kB\n", 12 * KB),
        ("Name:\tVmRSS:\nVmRSS: 5\n", 5),
        ("Name:\tpython VmRSS: 3\n", None),
        ("XVmRSS: 3\n", None),
        ("VmRSS", None),
        ("VmRSS:", None),
        ("VmRSS: much kB\n", None),
        ("a: 1\nVmRSSX: 2\nVmRSS: 3", 3),
        ("", None),
        (None, None),
    ],
)
def test_one_field_of_a_file_of_proc(text, value):
    assert field(text, "VmRSS") == value


def test_an_exceeded_limit_leaves_nothing(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000\n",
        "sys/fs/cgroup/memory.current": "1500\n",
    }
    assert cgroup.memory_left(write_files(tmp_path, files)) == 0


def test_a_group_path_that_climbs_out_of_the_mount_is_not_followed(tmp_path):
    files = {
        "proc/self/cgroup": "0::/../../elsewhere\n",
        "sys/fs/elsewhere/memory.max": "1\n",
        "sys/fs/cgroup/memory.max": "1000\n",
    }
    assert [limit.size for limit in cgroup.memory_limits(write_files(tmp_path, files))] == [1000]


def test_a_machine_without_proc_has_figures_too(tmp_path):
    cpu = CPUAccelerator(str(tmp_path))
    assert cpu.total_memory() > 0
    assert cpu.memory_allocated() > 0
    assert 0 <= cpu.available_memory() <= cpu.total_memory()
