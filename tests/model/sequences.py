"""Rules that make several changes in a row, each with a load: what random single changes seldom bring about."""

from __future__ import annotations

import os
import shutil

from hypothesis import strategies as st
from hypothesis.stateful import rule
from loads import LAYERS, USERS
from machine import Changes, how_written, layers_drawn, load_by, number, time_set
from world import PLACES


class Sequences(Changes):
    """The rules of the model."""

    @rule(by=load_by, n=number)
    def let_earlier_roots_provide_a_source(self, by, n):
        self.world.attributes |= {"sources": ["op.cpp", "part.cpp"], "kernel_roots": ["first", "mine"]}
        for place in ("op", "first"):
            self.world.remove(f"{place}/part.cpp")
        for place in ("mine", "first", "op"):
            self.world.write(f"{place}/part.cpp", self.world.part_text(place, n))
            self.load(by)
            self.load("again")

    @rule(by=load_by, layers=layers_drawn, n=number)
    def change_what_is_included_from_above_a_folder(self, by, layers, n):
        self.use_features(self.world.features | {"quoted"}, "replace", "now")
        self.world.remove("op/sub/deep.h")
        self.world.layers = layers
        for layer in layers[:1]:
            self.fill(layer)
        self.load(by)
        for place, name in (("", "deep.h"), ("op/sub", "op/sub/deep.h")):
            self.world.write(name, self.world.header_text(place, "deep.h", n))
            self.load(by)
            self.load("again")

    @rule(by=load_by, n=st.integers(3, 4))
    def change_what_a_wrapper_reads(self, by, n):
        self.world.next_tick()
        self.world.write_script("bin/g++", 3, "replace")
        self.world.variables["CXX"] = self.world.path("bin/g++")
        self.load(by)
        self.world.variables["OMPI_MODEL"] = f"-DWRAPPER={n}"
        self.load(by)

    @rule(by=load_by, which=st.integers(0, 10**6), how=how_written, at=time_set)
    def change_what_a_build_asked_for(self, by, which, how, at):
        """Changes any file that a program of a build read, or lets any name appear that one looked for."""
        self.world.layers = ()
        built = self.load("force")
        names = self.world.asked_for(built)
        if not names:
            return  # it cannot be built, or the store is read-only
        kind, name = names[which % len(names)]
        if kind == "read":
            self.world.add_a_line(name, how, at)
        else:
            self.world.let_appear(name, how, at)
        changed = self.load(by)
        assert changed.get("key", "").partition("-")[0] != built["key"].partition("-")[0], f"{kind} unnoticed: {name}"
        if kind == "looked for":
            self.world.remove(name)
            self.load(by)

    @rule(by=load_by, n=number)
    def find_a_header_by_a_variable(self, by, n):
        for place in PLACES:
            self.world.remove(f"{place}/optional.h" if place else "optional.h")
        self.world.write("cpath/optional.h", self.world.header_text("cpath", "optional.h", n))
        self.world.variables.pop("CPATH", None)
        self.load(by)
        self.world.variables["CPATH"] = self.world.path("cpath")
        self.load(by)

    @rule(
        by=load_by,
        flag=st.sampled_from(("-MMD", "-MD", "-MMD -MP -MF list.d")),
        name=st.sampled_from(("CPLUS_INCLUDE_PATH", "CPATH")),
        n=number,
    )
    def change_a_header_that_a_requested_list_leaves_out(self, by, flag, name, n):
        """Writes a header that the source includes without asking for it: only a whole list of the headers names it."""
        self.world.variables |= {name: self.world.path("cpath"), "CXXFLAGS": f"{flag} -DSYSTEM"}
        for value in (n, 3 - n):
            self.world.write("cpath/system.h", self.world.header_text("cpath", "system.h", value))
            self.load(by)
            self.load("again")

    @rule(by=load_by, n=number)
    def let_a_link_lead_to_a_header_later(self, by, n):
        for place in PLACES:
            self.world.remove(f"{place}/optional.h" if place else "optional.h")
        self.world.remove("temporary/aside/optional.h")
        os.makedirs(self.world.path("temporary/aside"), exist_ok=True)
        self.world.attributes["include_dirs"] = ["early", "late"]
        self.load(by)
        self.world.link("early/optional.h", self.world.path("temporary/aside/optional.h"))
        self.load(by)
        self.load("again")
        self.world.write("temporary/aside/optional.h", self.world.header_text("aside", "optional.h", n))
        self.load(by)

    @rule(by=load_by, dates=st.permutations(("0", "1000000000")))
    def change_the_date_that_a_source_holds(self, by, dates):
        self.use_features(self.world.features | {"dated"}, "replace", "now")
        for date in dates:
            self.world.variables["SOURCE_DATE_EPOCH"] = date
            self.load(by)

    @rule(by=load_by, n=number)
    def change_what_the_assembler_reads(self, by, n):
        self.use_features(self.world.features | {"embedded"}, "replace", "now")
        for value in (n, 3 - n):
            for place in ("late", "mine/include"):
                self.world.write(f"{place}/blob.txt", f"<blob={place}{value}>")
            self.load(by)

    @rule(by=load_by, n=number)
    def change_what_specs_say(self, by, n):
        self.world.remove("libs/specs")
        self.world.variables["LIBRARY_PATH"] = self.world.path("libs")
        self.load(by)
        for value in (n, 3 - n):
            self.world.write("libs/specs", f"*cc1plus:\n+ -DSPECS={value}\n\n")
            self.load(by)

    @rule(
        by=load_by,
        layer=st.sampled_from(LAYERS),
        name=st.sampled_from(("define_macros", "extra_compile_args")),
        n=number,
    )
    def fill_a_layer_and_change_a_flag(self, by, layer, name, n):
        self.world.layers = (layer,)
        for value in (n, 3 - n):
            self.set_flag(name, value)
            self.load(by)
            self.fill(layer)

    @rule(by=load_by, layer=st.sampled_from(LAYERS), n=number)
    def fill_a_layer_and_turn_the_roots_round(self, by, layer, n):
        for place in ("first", "mine"):
            self.world.write(f"{place}/include/inner.h", self.world.header_text(place, "inner.h", n))
        self.world.layers, self.world.attributes["include_dirs"] = (layer,), ["early"]
        for roots in (["first", "mine"], ["mine", "first"]):
            self.world.attributes["kernel_roots"] = roots
            self.load(by)
            self.fill(layer)
        self.load(by)

    @rule(by=load_by, layer=st.sampled_from(LAYERS), n=number)
    def fill_a_layer_and_give_a_root_its_headers(self, by, layer, n):
        self.world.next_tick()
        shutil.rmtree(self.world.path("first/include"), ignore_errors=True)
        self.world.remove("early/inner.h")
        self.world.attributes |= {"include_dirs": ["early"], "kernel_roots": ["first", "mine"]}
        self.world.layers = (layer,)
        self.fill(layer)
        self.load(by)
        self.world.write("first/include/inner.h", self.world.header_text("first", "inner.h", n))
        self.load(by)

    @rule(by=load_by, holder=st.sampled_from(("class", "base")), n=number)
    def declare_on_the_class_of_all_builders(self, by, holder, n):
        for where, value in ((holder, n), ("base", n), ("base", 3 - n), ("class", n)):
            self.world.holder = where
            self.set_flag("define_macros", value)
            self.load(by)
            self.load("fresh")

    @rule(by=load_by, containers=st.sampled_from(("plain", "user's", "other")), n=number)
    def change_containers_in_place(self, by, containers, n):
        self.world.containers = containers
        for name in ("define_macros", "extra_compile_args"):
            for value in (n, 3 - n):
                self.set_flag(name, value)
                self.load(by)
                self.load("held")

    @rule(by=load_by, quote=st.sampled_from(("", "'", '"')), n=number)
    def change_a_file_of_arguments(self, by, quote, n):
        """Writes flags whose quotes a shell would refuse, in a file that another one names."""
        before = self.world.attributes["extra_compile_args"]
        self.world.write("flags/outer", f"-DOUTER '@{self.world.path('flags/inner')}")
        self.world.attributes["extra_compile_args"] = [f"@{self.world.path('flags/outer')}"]
        for value in (n, 3 - n):
            self.world.write("flags/inner", f"{quote}-DFLAG={value}")
            self.load(by)
            self.load("again")
        self.world.attributes["extra_compile_args"] = before

    @rule(by=load_by, n=number)
    def change_a_header_that_a_macro_names(self, by, n):
        self.use_features(self.world.features | {"computed"}, "replace", "now")
        for value in (n, 3 - n):
            self.world.write("early/inner.h", self.world.header_text("early", "inner.h", value))
            self.load(by)
        self.world.remove("early/inner.h")
        self.load(by)
        for second in (n, 3 - n):
            self.world.write_copies(n, second)
            self.load(by)
        self.world.write_copies(1, 1)

    @rule(by=load_by, layer=st.sampled_from(LAYERS), n=number)
    def fill_a_layer_with_headers_of_a_variable(self, by, layer, n):
        self.world.layers = (layer,)
        self.world.variables |= {"CPATH": f"{self.world.path('cpath2')}:{self.world.path('cpath')}"}
        for place in PLACES:
            self.world.remove(f"{place}/optional.h" if place else "optional.h")
        self.world.write("cpath/optional.h", self.world.header_text("cpath", "optional.h", n))
        self.load(by)
        self.fill(layer)
        self.load(by)
        for place, value in (("cpath", 3 - n), ("cpath2", n)):
            self.world.write(f"{place}/optional.h", self.world.header_text(place, "optional.h", value))
            self.load(by)
        self.world.variables["CPATH"] = self.world.path("cpath")
        self.load(by)

    @rule(by=load_by, n=number)
    def switch_a_link_to_a_folder_of_headers(self, by, n):
        self.world.attributes["include_dirs"] = ["linked", "late"]
        for place in ("early", "cpath"):
            self.world.write(f"{place}/inner.h", self.world.header_text(place, "inner.h", n))
        for place in ("early", "cpath", "early"):
            self.world.link("linked", place)
            self.load(by)
            self.load("held")
        self.world.attributes["include_dirs"] = ["early", "late"]

    @rule(by=load_by, n=number)
    def use_a_folder_whose_v2_is_the_users(self, by, n):
        """Loads with a folder that is no store: nothing in it may change, and a load says so, or a layer answers it."""
        store, contents = self.world.store, {f"v2/{area}/own{n}/notes": area for area in ("staging", "plans", "logs")}
        for name, text in contents.items():
            self.world.write(f"{USERS}/{name}", text, at="long ago")
            os.utime(os.path.dirname(self.world.path(f"{USERS}/{name}")), (10**9, 10**9))
        self.world.store = USERS
        self.load(by)
        self.load("held")
        self.world.store = store
        kept = {name: self.world.read(f"{USERS}/{name}") for name in contents}
        assert kept == contents, f"files of the user were changed or removed: {kept}"
