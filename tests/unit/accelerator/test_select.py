"""Which accelerator is chosen, and how the choice is replaced."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import threading

import pytest
from support import child_processes
from support.devices import vendor_modules
from support.devices.fake_packages import accelerator_source

from opforge.accelerator import candidates, get_accelerator, registry, select, set_accelerator
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.devices.null import NullAccelerator
from opforge.errors import AcceleratorUnavailableError, SettingError, UnknownAcceleratorError


@pytest.fixture(autouse=True)
def on_a_machine_without_devices(no_devices):
    pass


def test_the_cpu_is_chosen_if_there_is_nothing_else_and_only_once():
    accelerator = get_accelerator()
    assert isinstance(accelerator, CPUAccelerator)
    assert get_accelerator() is accelerator


def test_all_threads_get_the_same_accelerator():
    accelerators = []
    threads = [threading.Thread(target=lambda: accelerators.append(get_accelerator())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accelerators) == 8 and len(set(map(id, accelerators))) == 1


@pytest.mark.parametrize("variable", ["OPFORGE_ACCELERATOR", "DS_ACCELERATOR"])
@pytest.mark.parametrize("name", ["null", "NULL"])
def test_a_variable_names_the_accelerator(monkeypatch, variable, name):
    monkeypatch.setenv(variable, name)
    assert isinstance(get_accelerator(), NullAccelerator)


def test_opforges_variable_is_preferred_to_deepspeeds(monkeypatch):
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "cpu")
    monkeypatch.setenv("DS_ACCELERATOR", "null")
    assert get_accelerator().name == "cpu"


def test_an_unknown_name_is_an_error_with_similar_names(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "nul")
    with pytest.raises(UnknownAcceleratorError) as raised:
        get_accelerator()
    assert str(raised.value) == (
        "'nul', requested by DS_ACCELERATOR, is not a known accelerator. Did you mean 'null' or 'npu'?"
        " Known: cpu, cuda, hpu, klxpu, mlu, mps, npu, null, sdaa, supa, xpu."
        " Install the package that provides it, or choose one of these."
    )


def test_a_device_that_only_torch_knows_is_an_error_with_what_torch_reports(monkeypatch):
    import torch

    monkeypatch.setattr(torch.mtia, "is_available", lambda: True)
    monkeypatch.setattr(torch.mtia, "device_count", lambda: 2)
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "mtia")
    with pytest.raises(AcceleratorUnavailableError) as raised:
        get_accelerator()
    assert str(raised.value) == (
        "The accelerator 'mtia', requested by OPFORGE_ACCELERATOR, cannot be used here: torch sees 2 mtia devices, but"
        " no accelerator class for 'mtia' is installed. Fix that, or unset it to let opforge choose."
    )
    (candidate,) = [candidate for candidate in candidates() if candidate.name == "mtia"]
    assert "torch sees 2 mtia devices" in candidate.reason


def test_every_candidate_has_a_reason():
    assert all(candidate.reason for candidate in candidates())
    assert {candidate.name: candidate.available for candidate in candidates()}["cpu"]


def test_null_is_chosen_only_by_name(monkeypatch):
    (candidate,) = [candidate for candidate in candidates() if candidate.name == "null"]
    assert candidate.reason == "runs nothing: used only by name"
    monkeypatch.setattr(registry, "BUILT_IN", {"null": registry.BUILT_IN["null"]})  # not even if it is the only one
    with pytest.raises(AcceleratorUnavailableError):
        get_accelerator()


def test_an_accelerator_of_another_package_is_preferred(add_accelerator):
    add_accelerator("quick", accelerator_source())
    assert get_accelerator().name == "quick"
    assert candidates()[0].name == "quick"
    assert [candidate.name for candidate in candidates()][-2:] == ["cpu", "null"]


def test_an_unavailable_accelerator_is_skipped_with_its_reason(add_accelerator):
    add_accelerator("quick", accelerator_source(available="False"))
    assert get_accelerator().name == "cpu"
    assert candidates()[0].reason == "its driver is not loaded"
    with pytest.raises(
        AcceleratorUnavailableError, match=r"'quick', requested by the program.*its driver is not loaded"
    ):
        set_accelerator("quick")


@pytest.mark.parametrize("name", [name for name in vendor_modules.VENDORS if name != "mps"])
def test_a_present_device_is_chosen_without_being_named(name, monkeypatch, tmp_path):
    monkeypatch.setattr(select, "DRIVER_FILES", {**select.DRIVER_FILES, name: ("/dev/null",)})
    vendor_modules.install(name, monkeypatch, tmp_path)
    assert get_accelerator().name == name
    (candidate,) = [candidate for candidate in candidates() if candidate.name == name]
    assert candidate.available and candidate.reason == "available"


def test_a_named_accelerator_that_cannot_be_used_is_an_error_with_every_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_ACCELERATOR", "MLU")
    monkeypatch.setattr(vendor_modules.accelerator_class("mlu"), "root", str(tmp_path))
    with pytest.raises(AcceleratorUnavailableError) as raised:
        get_accelerator()
    assert str(raised.value) == (
        "The accelerator 'mlu', requested by OPFORGE_ACCELERATOR, cannot be used here: the package torch_mlu is not"
        " installed; no device: the driver has made no /dev/cambricon_dev[0-9]*. Fix that, or unset it to let opforge"
        " choose."
    )


@pytest.fixture
def tried(monkeypatch):
    """The names of the accelerators that the choice makes; only the CPU's is available."""
    names = []

    def make_if_available(point):
        names.append(point.name)
        return (CPUAccelerator() if point.name == "cpu" else None), "", None

    monkeypatch.setattr(registry, "make_if_available", make_if_available)
    return names


def test_an_accelerator_without_its_drivers_files_is_not_tried(tried, monkeypatch, tmp_path):
    monkeypatch.setattr(select, "DRIVER_FILES", dict.fromkeys(select.DRIVER_FILES, ("/dev/no/such/file",)))
    vendor_modules.install("cuda", monkeypatch, tmp_path)
    assert get_accelerator().name == "cpu" and tried == ["cpu"]


@pytest.mark.parametrize(("cuda", "hip", "is_tried"), [(None, None, False), ("13.0", None, True), (None, "7.1", True)])
def test_a_device_that_torch_is_not_built_for_is_not_tried(tried, monkeypatch, cuda, hip, is_tried):
    import torch

    monkeypatch.setattr(select, "DRIVER_FILES", {"cuda": ("/dev/null",)})
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    get_accelerator()
    assert ("cuda" in tried) is is_tried


def test_the_choice_and_the_accelerators_look_for_the_same_torch_builds():
    for name in vendor_modules.VENDORS:
        builds = tuple(vendor_modules.accelerator_class(name).torch_builds)
        assert builds == select.TORCH_BUILDS.get(name, ()), name


def test_set_accelerator_takes_an_accelerator_or_a_name():
    null = NullAccelerator()
    set_accelerator(null)
    assert get_accelerator() is null
    select.reset()
    set_accelerator("cpu")
    assert get_accelerator().name == "cpu"
    with pytest.raises(
        SettingError, match=r"accelerator=3 cannot be used: expected an opforge.accelerator.Accelerator"
    ):
        set_accelerator(3)


def test_replacing_an_accelerator_that_code_may_hold_warns_once_with_the_place(no_devices, tmp_path):
    library = tmp_path / "library.py"
    library.write_text("from opforge import get_accelerator\n\nKEPT = get_accelerator()\n")
    set_accelerator("cpu")  # nobody has called get_accelerator() yet
    exec(compile(library.read_text(), str(library), "exec"), {"__name__": "library"})
    set_accelerator("cpu")  # of the same kind
    with pytest.warns(RuntimeWarning) as caught:
        set_accelerator("null")
    assert [str(warning.message) for warning in caught] == [
        f"set_accelerator('null'): get_accelerator() already returned 'cpu', first at {library}:3, and code that kept"
        " it still uses it. Call set_accelerator() before the first get_accelerator(), or set OPFORGE_ACCELERATOR=null."
    ]
    assert caught[0].filename == __file__ and get_accelerator().name == "null"
    set_accelerator("cpu")
    assert get_accelerator().name == "cpu"


def test_the_place_of_a_call_inside_opforge_is_that_of_its_caller(no_devices):
    import opforge.accelerator.by_device as by_device

    line = sys._getframe().f_lineno + 1
    by_device.accelerator_of("cpu")
    with pytest.warns(RuntimeWarning, match=rf"already returned 'cpu', first at {re.escape(__file__)}:{line}, "):
        set_accelerator("null")


def test_a_warning_that_is_made_an_error_replaces_nothing(no_devices):
    before = get_accelerator()
    with pytest.raises(RuntimeWarning, match="already returned 'cpu'"):
        set_accelerator("null")
    assert get_accelerator() is before


@pytest.mark.parametrize("kind", [CPUAccelerator, NullAccelerator])
def test_a_copy_of_an_accelerator_is_the_accelerator_itself(kind):
    accelerator = kind()
    accelerator.set_device(0)
    assert copy.copy(accelerator) is accelerator
    owner = copy.deepcopy({"acc": accelerator, "values": [1]})
    assert owner["acc"] is accelerator


def test_an_unpickled_accelerator_is_the_one_in_use():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(get_accelerator(), protocol)
        assert pickle.loads(pickled) is get_accelerator()
    select.reset()
    set_accelerator("null")
    assert isinstance(pickle.loads(pickled), NullAccelerator), "that of the process that reads it"


HOST = """
import sys
from opforge import get_accelerator, use_accelerator
from opforge.accelerator import select
select.DRIVER_FILES = {}
from opforge.foundation import remembered_values
remembered_values.RACY_NS = -(10**12)
accelerator = get_accelerator()
first = type(accelerator)
builder = accelerator.create_op_builder("CPULionBuilder")
assert accelerator.create_op_builder("CPULionBuilder") is builder
if first is select.LazyCPUAccelerator:
    assert "opforge.accelerator.interface.accelerator" not in sys.modules
"""
WHOLE = """
assert accelerator.is_available() and type(accelerator) is first and accelerator.__class__.__name__ == "CPUAccelerator"
assert get_accelerator() is accelerator
assert accelerator.create_op_builder("CPULionBuilder") is builder
assert builder.target == accelerator.target()
from opforge.accelerator import Accelerator
assert isinstance(accelerator, Accelerator)
print(first.__name__)
"""
USES = (
    "accelerator.device_name()",
    "repr(accelerator)",
    "dir(accelerator)",
    "import pickle; assert pickle.loads(pickle.dumps(accelerator)) is accelerator",
    "from opforge.accelerator import CPUAccelerator; assert isinstance(accelerator, CPUAccelerator)",
    "assert accelerator.create_op_builder('NoSuchBuilder') is None",
    "import copy; assert copy.deepcopy([accelerator])[0] is accelerator; accelerator.name, accelerator.is_available()",
    "with use_accelerator('null'): pass\nassert get_accelerator().communication_backend_name() in ('gloo', 'ccl')",
    "accelerator.own = 1; assert accelerator.own == 1; del accelerator.own; assert not hasattr(accelerator, 'own')",
    "create = accelerator.create_op_builder\naccelerator.create_op_builder = print\n"
    "assert accelerator.create_op_builder is print\ndel accelerator.create_op_builder\n"
    "assert accelerator.create_op_builder == create",
    "import threading\n"
    "threads = [threading.Thread(target=accelerator.device_count) for _ in range(8)]\n"
    "[thread.start() for thread in threads], [thread.join() for thread in threads]",
)


@pytest.mark.test_all("two processes of torch: 4 s")
def test_a_lazy_accelerator_of_the_cpu_does_all_that_the_whole_one_does(own_store):
    own_store.mkdir(parents=True, exist_ok=True)
    code = HOST + USES[0] + WHOLE
    assert child_processes.run_python(code) == "CPUAccelerator\n", "the first choice is not remembered yet"
    for use in USES:
        assert child_processes.run_python(HOST + use + WHOLE) == "LazyCPUAccelerator\n", use
    code = "import opforge.accelerator.devices.cpu" + HOST + WHOLE
    assert child_processes.run_python(code) == "CPUAccelerator\n", "nothing is saved if it is imported already"
