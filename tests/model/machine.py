"""The model: random changes, and after each a load, which must give what a build without a cache gives."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from loads import LAYERS, Context, Loads
from world import COMPILERS, FEATURES, PLACES, source_text

STORES = ("store0", "store1")
HEADERS = ("inner.h", "optional.h", "wanted.h", "deep.h", "value.h", "blob.txt")
number = st.integers(1, 2)
how_written = st.sampled_from(("replace", "in place"))
time_set = st.sampled_from(("now", "now", "kept", "long ago"))
sources_drawn = st.sampled_from((("op.cpp",), ("op.cpp", "part.cpp")))
layers_drawn = st.sampled_from(((), ("layer0",), ("layer1", "layer0"), ("layer0", "layer1")))
is_read_only = st.sampled_from((False, False, True))
load_by = st.sampled_from(("again",) * 11 + ("held",) * 6 + ("fresh",) * 2 + ("force",))


class Changes(Loads):
    """Each rule changes one thing and loads."""

    @rule(by=load_by, n=number, how=how_written, at=time_set)
    def edit_the_source(self, by, n, how, at):
        self.world.write("op/op.cpp", source_text(n, self.world.features), how, at)
        self.load(by)

    @initialize(features=st.sets(st.sampled_from(FEATURES)), sources=sources_drawn, layers=layers_drawn)
    def begin(self, features, sources, layers):
        self.world.attributes["sources"] = list(sources)
        self.world.layers = layers
        self.use_features(frozenset(features), "replace", "now")

    def use_features(self, features: frozenset[str], how: str, at: str) -> None:
        world = self.world
        world.features = features
        world.write("op/op.cpp", source_text(1, features), how, at)
        for name in ("libs", "libs2") if "linked" in features else ():
            if not os.path.exists(world.path(f"{name}/libmodel.a")):
                world.write_archive(name, 1, how, at)
        world.attributes["libraries"] = ["model"] if "linked" in features else []
        world.attributes["extra_link_args"] = [f"-L{world.path('libs')}"] if "linked" in features else []

    @rule(by=load_by, feature=st.sampled_from(FEATURES), how=how_written, at=time_set)
    def change_what_the_source_does(self, by, feature, how, at):
        self.use_features(self.world.features ^ {feature}, how, at)
        self.load(by)

    @rule(
        by=load_by, name=st.sampled_from(HEADERS), place=st.sampled_from(PLACES), n=number, how=how_written, at=time_set
    )
    def write_a_header(self, by, name, place, n, how, at):
        place = self.place_of(name, place)
        text = f"<blob={place}{n}>" if name == "blob.txt" else self.world.header_text(place, name, n)
        self.world.write(f"{place}/{name}" if place else name, text, how, at)
        self.load(by)

    def place_of(self, name: str, place: str) -> str:
        """Returns where a header lies: deep.h is included from above a folder, and is nowhere else."""
        return place if name != "deep.h" else ("op/sub" if place in PLACES[:4] else "")

    @rule(by=load_by, name=st.sampled_from(HEADERS), place=st.sampled_from(PLACES))
    def remove_a_header(self, by, name, place):
        place = self.place_of(name, place)
        if (place, name) not in (("op", "value.h"), ("late", "inner.h"), ("mine/include", "blob.txt"), ("", "deep.h")):
            self.world.remove(f"{place}/{name}" if place else name)
        self.load(by)

    @rule(by=load_by, place=st.sampled_from(("op", "first", "mine")), n=number, how=how_written, at=time_set)
    def write_a_source_of_a_root(self, by, place, n, how, at):
        self.world.write(f"{place}/part.cpp", self.world.part_text(place, n), how, at)
        self.load(by)

    @rule(by=load_by, place=st.sampled_from(("op", "first")))
    def remove_a_source_of_a_root(self, by, place):
        self.world.remove(f"{place}/part.cpp")
        self.load(by)

    @rule(by=load_by, name=st.sampled_from(("libs", "libs2")), n=number, how=how_written, at=time_set)
    def write_an_archive(self, by, name, n, how, at):
        self.world.write_archive(name, n, how, at)
        self.load(by)

    @rule(by=load_by, name=st.sampled_from(("op/op.cpp", "op/value.h", "late/inner.h", "mine/include/inner.h", "late")))
    def touch(self, by, name):
        self.world.next_tick()
        with suppress(FileNotFoundError):  # another step has removed it
            os.utime(self.world.path(name))
        self.load(by)

    # The declaration

    @rule(by=load_by, name=st.sampled_from(("define_macros", "extra_compile_args", "version")), n=number)
    def change_a_flag(self, by, name, n):
        self.set_flag(name, n)
        self.load(by)

    def set_flag(self, name, n):
        values = {
            "define_macros": {"MACRO": str(n), "BLOB": '"blob.txt"'},
            "extra_compile_args": [f"-DFLAG={n}"],
            "version": str(n),
        }
        self.world.attributes[name] = values[name]

    @rule(
        by=load_by,
        folders=st.sampled_from((("early", "late"), ("late", "early"), ("late",), ("early",), ("late", "libs"))),
    )
    def change_the_include_folders(self, by, folders):
        self.world.attributes["include_dirs"] = list(folders)
        self.load(by)

    @rule(by=load_by, roots=st.sampled_from((("mine",), ("first", "mine"), ("mine", "first"))))
    def change_the_kernel_roots(self, by, roots):
        self.world.attributes["kernel_roots"] = list(roots)
        self.load(by)

    @rule(by=load_by, sources=sources_drawn)
    def change_the_sources(self, by, sources):
        self.world.attributes["sources"] = list(sources)
        self.load(by)

    @rule(by=load_by, folders=st.sampled_from((("libs",), ("libs2",), ("libs2", "libs"))))
    def change_the_folders_of_archives(self, by, folders):
        if "linked" in self.world.features:
            self.world.attributes["extra_link_args"] = [f"-L{self.world.path(name)}" for name in folders]
        self.load(by)

    # Compilers and variables

    @rule(
        by=load_by, link=st.sampled_from(("alternatives/c++", "profiles/a/bin/g++")), at=st.integers(0, len(COMPILERS))
    )
    def switch_a_link_to_a_compiler(self, by, link, at):
        if at == len(COMPILERS):
            self.world.write_script("temporary/wrapper", 1, "replace")
            self.world.link(link, self.world.path("temporary/wrapper"))
        else:
            self.world.link(link, COMPILERS[at])
        self.load(by)

    @rule(by=load_by, n=st.integers(1, 3), how=how_written)
    def replace_a_compiler_in_place(self, by, n, how):
        self.world.next_tick()
        self.world.write_script("bin/g++", n, how)
        self.load(by)

    @rule(by=load_by)
    def put_the_link_back(self, by):
        self.world.link("bin/g++", "../alternatives/c++")
        self.load(by)

    @rule(by=load_by, profile=st.sampled_from("ab"))
    def switch_the_profile(self, by, profile):
        self.world.link("current", f"profiles/{profile}")
        self.load(by)

    @rule(by=load_by, name=st.sampled_from(("bin/g++", "current/bin/g++", "", "g++", "alternatives/c++")))
    def choose_a_compiler(self, by, name):
        if name == "":
            self.world.variables.pop("CXX", None)
        else:
            self.world.variables["CXX"] = self.world.path(name) if "/" in name else name
        self.load(by)

    @rule(
        by=load_by,
        name=st.sampled_from(
            (
                *("CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH", "OMPI_MODEL"),
                *("OPFORGE_PREBUILT", "OPFORGE_PARANOID"),
            )
        ),
        n=st.integers(0, 4),
    )
    def set_a_variable(self, by, name, n):
        path = self.world.path
        values = {
            # -MMD requests a list without the headers of the folders of CPATH.
            "CXXFLAGS": ("-DCXXFLAGS=1", f"-I{path('flags')}", "-MMD", f"-idirafter{path('flags')}"),
            "CPPFLAGS": ("-DCPPFLAGS=1", "-DCPPFLAGS=2"),
            "LDFLAGS": (f"-L{path('libs2')}", "-Wl,--build-id"),
            "CPATH": (path("cpath"), f"{path('cpath2')}:{path('cpath')}"),
            "LIBRARY_PATH": (path("libs2"), path("libs")),
            "SOURCE_DATE_EPOCH": ("0", "1000000000"),
            "OMPI_MODEL": ("-DWRAPPER=3", "-DWRAPPER=4"),
            "OPFORGE_PREBUILT": ("ignore", "prefer"),
            "OPFORGE_PARANOID": ("1", "0"),
        }
        self.world.variables.pop(name, None)
        if n:
            self.world.variables[name] = values[name][n % len(values[name])]
        self.load(by)

    # Stores, layers, machines

    @rule(by=load_by, store=st.sampled_from(STORES))
    def choose_a_store(self, by, store):
        self.world.store = store
        self.stored = ""
        self.load(by)

    @rule(by=load_by, copied=st.permutations(STORES), read_only=is_read_only)
    def copy_a_store(self, by, copied, read_only):
        self.world.copy_store(*copied)
        self.world.store = copied[1]
        self.world.set_read_only(copied[1], read_only)
        self.stored = ""
        self.load(by)

    @rule(by=load_by, read_only=is_read_only)
    def change_whether_the_store_is_read_only(self, by, read_only):
        self.world.set_read_only(self.world.store, read_only)
        self.load(by)

    @rule(by=load_by, layer=st.sampled_from(LAYERS))
    def fill_a_layer(self, by, layer):
        self.fill(layer)
        self.load(by)

    def fill(self, layer):
        context = Context(self.world, tempfile.mkdtemp(prefix="context-", dir=self.world.root))
        answer = self.again.ask(self.world, "layer", layer)
        if "key" in answer:
            self.contexts.setdefault(answer["key"], context)
        self.stored = ""

    @rule(by=load_by, layers=layers_drawn)
    def choose_the_layers(self, by, layers):
        self.world.layers = layers
        self.stored = ""
        self.load(by)

    @rule(by=load_by, machine=st.sampled_from("ab"), clock_ahead=st.booleans())
    def use_another_machine(self, by, machine, clock_ahead):
        self.world.machine, self.world.clock_ahead = machine, clock_ahead or machine == "a"
        self.load(by)

    @rule(by=load_by, _number=number)
    def change_nothing(self, by, _number):
        self.load(by)
