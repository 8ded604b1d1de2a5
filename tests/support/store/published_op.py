"""Publishes an entry for a real builder, without compiling."""

from __future__ import annotations

import os

from support.store.fake_store import ME, publish_entry

from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.planner import make_plan
from opforge.builders.run.reads.provenance import Provenance
from opforge.builders.toolchains import find_toolchain
from opforge.cache import current_store


def publish_op(builder, store, content="a library", headers=("value.h",)):
    """Publishes an entry for a builder's op as it is now; returns the name of its folder.

    Its inputs are the builder's sources and the `headers` of its own folder; its library holds `content`.
    """
    current_store.prepare(str(store.layout), ME)
    spec = builder.spec()
    plan, paths = make_plan(spec, find_toolchain(spec, store)), root_paths(spec)
    provenance = Provenance(paths, store.disk)
    files = [os.path.join(paths[source.root], source.path) for source in plan.sources]
    files += [os.path.join(paths["own"], name) for name in headers]
    reads = [provenance.locate(path) for path in files]
    search = [os.path.join(paths[folder.root], folder.path) for folder in plan.include]
    inputs, stamps = provenance.collect(reads, search), provenance.stamps(reads)
    fields = {"components": plan.components(), "stamps": stamps, "abi": plan.abi, "target": plan.target}
    return publish_entry(store, plan.key, description_key(spec), paths, inputs, content.encode(), plan.op, **fields)
