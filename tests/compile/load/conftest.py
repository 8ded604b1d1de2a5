"""A relu on the stable ABI, which the tests of several files load."""

from __future__ import annotations

import pytest
from support import sample_ops


@pytest.fixture(scope="session")
def relu_and_store(tmp_path_factory):
    """The builder class of a relu with a fake kernel, and a store for it alone: it is compiled once a session."""
    folder = tmp_path_factory.mktemp("relu")
    return sample_ops.stable_op(folder / "op", fakes={"relu": sample_ops.relu_fake}), str(folder / "store")


@pytest.fixture
def relu_class(relu_and_store, precompiled, monkeypatch):
    """The builder class of the relu; its store is in use."""
    cls, store = relu_and_store
    monkeypatch.setenv("OPFORGE_CACHE_DIR", store)
    return cls


@pytest.fixture
def relu_op(relu_class):
    """The relu, loaded."""
    return relu_class().load()
