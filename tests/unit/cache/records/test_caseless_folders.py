"""Headers that appear in folders without case, under another spelling than they are looked for."""

from __future__ import annotations

import pytest
from support.fake_disk import SECOND, CaselessDisk, FakeDisk
from support.text_files import sha256

from opforge.cache.records import validity
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath

ROOT_PATHS = {"own": "/p"}


@pytest.fixture(params=["foo.h", "FOO.H", "Sub/Foo.h"])
def caseless(request):
    """A disk without case, the inputs of a build that looked for a name on it, and another spelling of that name."""
    disk = CaselessDisk()
    disk.write("/p/a.cpp", "int a;")
    disk.touch_folder("/p/inc")
    disk.write("/p/inc/other.h", "")
    name = "sub/Foo.h" if "/" in request.param else "Foo.h"
    files = (Dependency("own", "a.cpp", sha256("int a;")), Dependency("own", f"late/{name}", sha256("int late;")))
    disk.write(f"/p/late/{name}", "int late;")
    searched = (RootedPath("own", "inc"), RootedPath("own", "late"))
    inputs = Inputs(files=files, names=(name,), searched=searched, present=(RootedPath("own", f"late/{name}"),))
    disk.now += 60 * SECOND
    return disk, inputs, name, request.param


def test_a_header_of_another_case_shadows_one_where_names_have_no_case(caseless):
    disk, inputs, name, spelled = caseless
    assert validity.Observation(ROOT_PATHS, disk).problem(inputs.to_json()) is None
    disk.write(f"/p/inc/{spelled}", "int early;")
    problem = validity.Observation(ROOT_PATHS, disk).problem(inputs.to_json())
    assert problem == f"/p/inc/{name} has appeared, and may shadow a header"


def test_has_include_finds_a_header_of_another_case_where_names_have_no_case(caseless):
    disk, inputs, name, spelled = caseless
    folders = [(("own", "inc"), "/p/inc")]
    inputs = inputs._replace(names=(), answers=((f"include {name}", ()),), searched=(RootedPath("own", "inc"),))
    assert validity.Observation(ROOT_PATHS, disk).problem(inputs.to_json()) is None
    disk.write(f"/p/inc/{spelled}", "")
    assert validity.places(name, folders, validity.Listings(disk)) == (("own", f"inc/{name}"),)
    problem = validity.Observation(ROOT_PATHS, disk).problem(inputs.to_json())
    assert problem == f"{name}, which a source asks for by __has_include, has appeared"


def test_where_names_have_case_a_header_of_another_case_is_another(caseless):
    disk, inputs, _name, spelled = caseless
    disk.__class__ = FakeDisk  # the same files, where names have case
    disk.write(f"/p/inc/{spelled}", "int early;")
    assert validity.Observation(ROOT_PATHS, disk).problem(inputs.to_json()) is None
