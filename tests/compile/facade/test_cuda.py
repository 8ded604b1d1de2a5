"""The facade's headers for CUDA compile with nvcc. Nothing is run: that needs a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest
from facade.compiling import cuda_command

SOURCE = Path(__file__).parents[2] / "support" / "facade" / "cuda_source.cu"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc on PATH")
def test_a_source_in_cuda_is_compiled_to_an_object_of_weak_symbols(tmp_path: Path) -> None:
    ended = subprocess.run(cuda_command("op", SOURCE, tmp_path / "op.o"), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    listed = subprocess.run(["nm", str(tmp_path / "op.o")], check=True, capture_output=True, text=True).stdout
    of_cuda = {
        line.split()[-1]: line.split()[0] for line in listed.splitlines() if "_cuda" in line and "torch_" in line
    }
    assert of_cuda.pop("aoti_torch_device_type_cuda") == "U"  # every torch has it
    # A torch without CUDA has none of the others, and the library loads beside it.
    assert of_cuda["aoti_torch_get_current_cuda_stream"] == "w"
    assert set(of_cuda.values()) == {"w"}, of_cuda
