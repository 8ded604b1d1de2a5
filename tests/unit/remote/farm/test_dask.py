"""`build-ops --on tls://...`: a real Dask scheduler with workers on this machine, which speak TLS."""

from __future__ import annotations

import json
import os

import pytest
from support.remote import farm as farms

pytestmark = [pytest.mark.compile, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def farm(tmp_path_factory, remote):
    """Two workers; `no_compiler` cannot build anything."""
    folder = tmp_path_factory.mktemp("farm")
    with farms.dask_farm(folder, "worker", has_tls=True, **remote.env) as farm:
        farm.start_worker("no_compiler", CXX="/no/such/compiler")
        farm.wait_for_workers(2)
        yield farm


@pytest.fixture(scope="module")
def asking(farm, remote):
    """The environment of who asks."""
    return {**remote.asking, **farm.tls}


@pytest.fixture(scope="module")
def report(tmp_path_factory, farm, asking):
    """Runs four units, one of which does not compile; returns (done, report, folder, names)."""
    folder = tmp_path_factory.mktemp("ops")
    names = farms.ops_module(folder, ["alpha", "beta", "gamma", "wrong"])
    (folder / "wrong.cpp").write_text("this is no C++;\n")
    path = folder / "report.json"
    done = farms.build_ops(farm.url, *names, "--report", str(path), folder=folder, **asking)
    assert path.exists(), done.stderr
    return done, json.loads(path.read_text()), folder, names


def test_units_are_built_by_workers_and_one_failure_stops_no_other(report, remote):
    done, document, _folder, names = report
    units = {unit["name"]: unit for unit in document["units"]}
    assert [unit["name"] for unit in document["units"]] == names
    assert done.returncode == 1
    assert [units[name]["state"] for name in names] == ["built"] * 3 + ["failed"], done.stderr
    for name in names[:3]:
        unit = units[name]
        assert unit["host"] == os.uname().nodename and unit["worker"].startswith("tls://")
        assert unit["bytes"] > 0 and unit["peak_bytes"] > 0 and unit["seconds"] > 0
        assert (unit["remote"], unit["path"]) == (remote.url, "")
    assert sorted(offer.name for offer in remote.offers() if offer.name != "slow") == ["alpha", "beta", "gamma"]
    assert not remote.claims()


def test_a_compile_error_is_not_tried_again(report, farm):
    _done, document, _folder, _names = report
    unit = document["units"][-1]
    assert unit["kind"] == "CompileError" and "wrong.cpp:1" in unit["reason"]
    assert unit["runs"] == 1


def test_a_machine_without_a_compiler_says_so_and_the_unit_goes_elsewhere(report, farm):
    _done, document, _folder, _names = report
    assert not farm.events("no_compiler")
    assert len({unit["worker"] for unit in document["units"] if unit["state"] == "built"}) == 1


@pytest.mark.long("starts a client of Dask for what test_executors.py tries on threads")
def test_a_second_run_does_the_rest(report, farm, asking):
    _done, _document, folder, names = report
    (folder / "wrong.cpp").write_text((folder / "beta.cpp").read_text())
    before = len(farm.events("worker"))
    done = farms.build_ops(farm.url, *names, "--json", folder=folder, **asking)
    states = [op["state"] for op in json.loads(done.stdout)["ops"]]
    assert states == ["prebuilt"] * 3 + ["built"], done.stdout
    assert len(farm.events("worker")) == before + 1
    assert done.returncode == 0


def test_out_brings_the_results_here(report, farm, asking, tmp_path):
    _done, _document, folder, names = report
    done = farms.build_ops(farm.url, names[0], "--out", str(tmp_path / "layer"), folder=folder, **asking)
    assert done.returncode == 0, done.stderr
    (library,) = (tmp_path / "layer").rglob("alpha*.so")
    assert str(library) in done.stdout


def test_no_machine_can_build_it(farm, asking, tmp_path):
    names = farms.ops_module(tmp_path, ["lost"], module="lost_ops")
    done = farms.build_ops(farm.url, *names, "--target", "cpu:aarch64", "--json", folder=tmp_path, **asking)
    (outcome,) = json.loads(done.stdout)["ops"]
    assert outcome["state"] == "failed" and outcome["reason"].startswith("no machine can build it:\n")
    assert outcome["reason"].count(os.uname().nodename) == 2, outcome["reason"]


def test_other_files_on_the_worker_are_refused(farm, asking, tmp_path):
    for side in ("here", "there"):
        farms.ops_module(tmp_path / side, ["other"], text=f"// {side}\n", module="other_ops")
    env = {**asking, "PYTHONPATH": ""}
    code = (
        "import os, sys, json; sys.path.insert(0, os.getcwd()); import other_ops;"
        "from opforge.remote.farm import api, unit;"
        "u = unit.unit_of(other_ops.OtherBuilder(), api.results_remote())._replace(folder=sys.argv[1]);"
        "print(json.dumps([o._asdict() for _n, o in api.sent(sys.argv[2], [u], False)]))"
    )
    import subprocess
    import sys

    from support import child_processes

    del env["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "there"), farm.url],
        cwd=tmp_path / "here",
        env=child_processes.environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (outcome,) = json.loads(done.stdout)
    assert outcome["state"] == "failed" and "are not those of the machine that asks" in outcome["reason"], done.stderr


def test_no_scheduler_is_an_error(remote, tmp_path):
    names = farms.ops_module(tmp_path, ["alone"], module="alone_ops")
    port = farms.free_port()
    env = {**remote.asking, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    done = farms.build_ops(f"tcp://127.0.0.1:{port}", *names, folder=tmp_path, **env)
    assert done.returncode == 1
    assert f"tcp://127.0.0.1:{port}: no connection to the scheduler" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_remote_there_is_no_place_for_results(farm, tmp_path):
    names = farms.ops_module(tmp_path, ["alone"], module="alone_ops")
    done = farms.build_ops(farm.url, *names, folder=tmp_path, **farm.tls)
    assert done.returncode == 1 and "a remote with push=1" in done.stderr


def test_who_has_no_certificate_is_refused(farm, remote, tmp_path):
    names = farms.ops_module(tmp_path, ["secret"], module="secret_ops")
    env = {**remote.asking, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    done = farms.build_ops(farm.url, *names, folder=tmp_path, **env)
    assert done.returncode == 1 and f"{farm.url}: no connection to the scheduler" in done.stderr, done.stderr
    assert "for tls:// that Dask's TLS settings name the certificates" in done.stderr
    assert "secret" not in {offer.name for offer in remote.offers()}
