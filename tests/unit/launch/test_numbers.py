"""The rank's numbers, as each engine's environment variables give them."""

from __future__ import annotations

import pytest

from opforge.errors import LaunchError
from opforge.launch.numbers import Numbers, first_host, read_numbers


@pytest.mark.parametrize(
    ("engine", "environ", "numbers"),
    [
        ("torchrun", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 2)),
        (
            "slurm",
            {
                "SLURM_PROCID": "4",
                "SLURM_NTASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "2",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
            },
            (4, 7, 0, 3),
        ),
    ],
)
def test_the_numbers_are_read_from_the_engines_variables(engine, environ, numbers):
    assert read_numbers(engine, environ) == Numbers(*numbers)


def test_a_missing_variable_is_named_with_the_launcher_to_use():
    with pytest.raises(LaunchError) as refused:
        read_numbers("openmpi", {})
    assert str(refused.value) == (
        "The launch failed: OMPI_COMM_WORLD_RANK is not set. Start this process by `opforge launch --launcher mpi`."
    )


def test_a_variable_that_does_not_parse_is_named():
    environ = dict.fromkeys(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), "0")
    with pytest.raises(LaunchError, match="SLURM_STEP_TASKS_PER_NODE='x' does not parse"):
        read_numbers("slurm", environ | {"SLURM_STEP_TASKS_PER_NODE": "x"})


@pytest.mark.parametrize(
    ("nodelist", "first"), [("gpu1", "gpu1"), ("node[07-09,12],gpu1", "node07"), ("a[3]b[1-2]", "a3b1"), ("x,y", "x")]
)
def test_the_first_host_of_slurms_list(nodelist, first):
    assert first_host(nodelist) == first
