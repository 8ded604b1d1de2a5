"""Links from signatures to the documentation of Python and torch, by a table: no inventory has to be fetched."""

from __future__ import annotations

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

PYTHON = "https://docs.python.org/3/library/"
TORCH = "https://docs.pytorch.org/docs/stable/"
FUNCTIONS = ("bool", "dict", "float", "frozenset", "int", "list", "object", "set", "tuple", "type")
EXCEPTIONS = ("Exception", "ImportError", "OSError", "RuntimeError", "TimeoutError", "TypeError", "ValueError")
LINKS = {
    **{name: f"{PYTHON}functions.html#{name}" for name in FUNCTIONS},
    **{name: f"{PYTHON}exceptions.html#{name}" for name in EXCEPTIONS},
    "str": f"{PYTHON}stdtypes.html#str",
    "bytes": f"{PYTHON}stdtypes.html#bytes",
    "Any": f"{PYTHON}typing.html#typing.Any",
    "torch.Tensor": f"{TORCH}tensors.html#torch.Tensor",
}
"""Name in a signature -> the address of its description."""


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Element | None:
    """Returns a link for a name that Sphinx does not know, or None if this table does not know it either."""
    target = str(node.get("reftarget", ""))
    if target.startswith("opforge."):  # in a signature: the module that has the class, and not the public name
        return _public(app, env, node, content, target.rpartition(".")[2])
    for name in (target, target.rpartition(".")[2]):
        if node.get("refdomain") == "py" and name in LINKS:
            reference = nodes.reference("", "", internal=False, refuri=LINKS[name])
            reference.append(content)
            return reference
    return None


def _public(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement, name: str
) -> nodes.Element | None:
    """Returns a link to the class of this name, if one public module has it."""
    documented = {
        full: entry for full, entry in env.domains["py"].data["objects"].items() if full.rpartition(".")[2] == name
    }
    if not documented:
        return None
    entry = documented[min(documented, key=len)]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content)
