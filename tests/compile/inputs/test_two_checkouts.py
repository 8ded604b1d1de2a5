"""Two checkouts of an op share a store: each gets the library of its own files, however these include each other."""

import itertools
import os
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import sample_ops, text_files, tiers

FOLDERS = ("op", "op/sub", "op/sub/deep", "include", "include/a", "third", "")
"""The folders of a checkout. The op's is the first."""
DECOY = 99
_numbers = itertools.count()
folders = st.sampled_from(FOLDERS)
searched = st.tuples(folders, st.sampled_from(("relative", "absolute", "-I", "-iquote", "-idirafter")))


class Layout(NamedTuple):
    """How the files of a checkout include each other."""

    search: list[tuple[str, str]]
    """Folders in which headers are searched, each with how it is declared."""
    headers: list[str]
    """The folders of the headers, each of which includes the next; the last one defines the value."""
    bases: list[int]
    """From which folder each #include names its header: that of the including file, or one that is searched."""

    def paths(self):
        return ["op/op.cpp", *(os.path.join(folder, f"h{at}.h") for at, folder in enumerate(self.headers))]

    def names(self):
        """Yields the folder of each file that includes another, and the name by which it does so."""
        for path, included, base in zip(self.paths(), self.paths()[1:], itertools.cycle(self.bases), strict=False):
            places = [os.path.dirname(path), *(folder for folder, _how in self.search)]
            yield path, os.path.relpath(included, places[base % len(places)] or ".")


class Checkout:
    """A copy of the files, at a place of its own."""

    def __init__(self, folder, layout, value):
        self.folder, self.layout = str(folder), layout
        for name in FOLDERS:
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        for path, name in layout.names():
            text_files.write(self.folder, path, f'#include "{name}"\n')
        text_files.write(self.folder, layout.paths()[-1], f"#define VALUE {value}\n")
        with open(os.path.join(self.folder, "op/op.cpp"), "a") as file:
            file.write(f"{sample_ops.EXPORT} int value() {{ return VALUE; }}\n")

    def value(self):
        """Returns what the op returns that is loaded from here."""
        own = os.path.join(self.folder, "op")
        absolute = {folder: os.path.join(self.folder, folder) for folder, _how in self.layout.search}
        declared = {"relative": lambda folder: os.path.relpath(absolute[folder], own), "absolute": absolute.get}
        include = [declared[how](folder) for folder, how in self.layout.search if how in declared]
        flags = [how + absolute[folder] for folder, how in self.layout.search if how not in declared]
        cls = sample_ops.builder_class(own, "op", abi="c", include_dirs=include, extra_compile_args=["-O0", *flags])
        return cls().load().value()

    def add(self, folder, name):
        """Writes another header which an #include may find first, and returns whether its place was free."""
        path = os.path.normpath(os.path.join(self.folder, folder, name))
        is_free = path.startswith(f"{self.folder}/") and not os.path.lexists(path)
        if is_free:
            text_files.write(os.path.dirname(path), os.path.basename(path), f"#define VALUE {DECOY}\n")
        return is_free


@settings(max_examples=60 if tiers.is_long() else 3, suppress_health_check=list(HealthCheck))
@given(
    layout=st.builds(
        Layout,
        st.lists(searched, max_size=3, unique_by=lambda pair: pair[0]),
        st.lists(folders, min_size=1, max_size=3),
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
    ),
    decoy=folders,
)
# A folder that is searched and the header to which .. leads from it are both beside op/.
@example(layout=Layout([("include", "relative")], ["op/sub", ""], [0, 1]), decoy="op")
def test_each_checkout_gets_what_its_own_files_say(layout, decoy, tmp_path, own_store, monkeypatch):
    here = tmp_path / str(next(_numbers))
    first, second = Checkout(here / "first", layout, 1), Checkout(here / "second", layout, 2)
    assert (first.value(), second.value(), first.value()) == (1, 2, 1)
    text_files.write(second.folder, layout.paths()[-1], "#define VALUE 1\n")
    assert second.value() == 1
    _path, name = [*layout.names()][-1]
    if second.add(decoy, name):
        shared = second.value()
        with monkeypatch.context() as alone:  # the same in an empty store
            alone.setenv("OPFORGE_CACHE_DIR", str(here / "store"))
            assert second.value() == shared, "built alone, it has another value"
        assert first.value() == 1
