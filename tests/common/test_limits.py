"""How much memory there is: the machine's, or what the container leaves, whichever is less."""

import pytest

from fedmes.common import limits

MB = 1_000_000


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system that tells what is written here: files by name, with their content."""
    monkeypatch.setattr(limits, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(limits, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "fs")

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")

    write(meminfo="MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: 8000000 kB")
    return write


def test_a_machine_without_containers(system):
    assert limits.free_memory() == 8_000_000 * 1024


def version_2(group, limit, used, cache=0):
    return {
        f"fs__{group}memory_dot_max": limit,
        f"fs__{group}memory_dot_current": used,
        f"fs__{group}memory_dot_stat": f"anon 5\ninactive_file {cache}",
    }


def version_1(group, limit, used, cache=0):
    return {
        f"fs__memory__{group}memory_dot_limit_in_bytes": limit,
        f"fs__memory__{group}memory_dot_usage_in_bytes": used,
        f"fs__memory__{group}memory_dot_stat": f"total_rss 5\ninactive_file 1\ntotal_inactive_file {cache}",
    }


def test_a_container_seen_from_inside(system):
    system(cgroup="0::/", **version_2("", 1500 * MB, 700 * MB, 200 * MB))
    assert limits.free_memory() == 1000 * MB


def test_the_tightest_of_the_groups_around_counts(system):
    system(cgroup="0::/user.slice/job", **version_2("user_dot_slice__job__", "max", 10 * MB))
    system(**version_2("user_dot_slice__", 600 * MB, 500 * MB), **version_2("", "max", 0))
    assert limits.free_memory() == 100 * MB
    system(**version_2("user_dot_slice__job__", 30 * MB, 10 * MB))
    assert limits.free_memory() == 20 * MB


def test_version_1_with_a_path_that_is_not_seen_from_inside(system):
    system(
        cgroup="12:cpu,cpuacct:/docker/1\n9:memory:/docker/1\n0::/docker/1",
        **version_1("", 50 * MB, 20 * MB, 5 * MB),
    )
    assert limits.free_memory() == 35 * MB
    system(**version_1("docker__1__", 9223372036854771712, 20 * MB))
    assert limits.free_memory() == 35 * MB


def test_a_container_that_is_full_leaves_nothing(system):
    system(cgroup="0::/", **version_2("", 100 * MB, 120 * MB))
    assert limits.free_memory() == 0


@pytest.mark.parametrize("odd", ["0::/", "0::/gone", "9:memory:/x"])
def test_what_is_not_told_does_not_count(system, odd):
    system(cgroup=odd)
    assert limits.free_memory() == 8_000_000 * 1024
