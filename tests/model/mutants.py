"""Patches that put a defect back, each into the process that loads. The model must find every one."""

from __future__ import annotations

from collections.abc import Callable

MUTANTS: dict[str, Callable[[], None]] = {}


def mutant(patch: Callable[[], None]) -> Callable[[], None]:
    MUTANTS[patch.__name__] = patch
    return patch


def put(owner: object, **values: object) -> None:
    """Replaces attributes that exist: a patch of a name that has moved would put no defect back."""
    for name, value in values.items():
        if not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name}")
        setattr(owner, name, value)


@mutant
def a_compiler_is_its_path() -> None:
    """Ignores the links on the way to a compiler."""
    from opforge.builders.toolchains.discovery import programs

    put(programs, reached=lambda words: [], link_folders=lambda words: set())


@mutant
def a_compiler_that_is_replaced_is_not_probed_again() -> None:
    from opforge.builders.toolchains.discovery import probe
    from opforge.foundation.remembered_values import FlatStamps

    put(probe, watched=lambda info: FlatStamps())


@mutant
def files_of_flags_do_not_count() -> None:
    from opforge.builders.toolchains.discovery import configuration

    put(configuration, files=lambda report: [], missing_files=lambda *arguments: [])


@mutant
def variables_of_wrappers_do_not_count() -> None:
    from opforge.builders.toolchains.discovery import programs
    from opforge.foundation import environment

    put(environment, of_wrappers=list)
    put(programs, of_wrappers=list, own_variables=lambda argv: [], state=lambda argv: [])


@mutant
def a_description_has_no_include_folders_and_no_roots() -> None:
    from opforge.builders.declaration import description

    put(description, FIELDS=tuple(name for name in description.FIELDS if name not in ("include_dirs", "roots")))


@mutant
def a_description_has_no_flags() -> None:
    from opforge.builders.declaration import description

    put(description, FIELDS=tuple(name for name in description.FIELDS if name not in ("cxx_flags", "defines")))


@mutant
def a_description_does_not_say_which_roots_have_headers() -> None:
    from opforge.builders.declaration import description

    description._VALUES["roots"] = lambda spec: [(root.name, root.include) for root in spec.declared_roots]


@mutant
def a_header_above_an_ops_folder_is_the_systems() -> None:
    from opforge.builders.run.reads.provenance import Provenance

    put(Provenance, _location_beside=lambda *arguments: None)


@mutant
def a_layer_is_not_compared() -> None:
    from opforge.cache.records.validity import Observation
    from opforge.cache.store import Source

    find, problem = Source.find, Observation.problem

    def find_any(*arguments: object) -> object:
        Observation.problem = lambda seen, *inputs: None
        try:
            return find(*arguments)
        finally:
            Observation.problem = problem

    put(Source, find=find_any)


@mutant
def the_flags_of_a_layers_maker_do_not_count() -> None:
    from opforge.builders.lookup import fit

    put(fit, flags_problem=lambda op, record: None)


@mutant
def headers_that_a_variable_led_a_layers_maker_to_are_not_compared() -> None:
    from opforge.builders.lookup import fit
    from opforge.cache import store

    put(store, compared_inputs=lambda record: [record["inputs"]])
    put(fit, HEADER_VARIABLES=())


@mutant
def what_is_set_on_the_class_of_all_builders_is_in_no_name() -> None:
    from opforge.fast_path import lookup

    put(lookup, is_as_written=lambda base: True)


@mutant
def containers_of_all_classes_count_as_plain() -> None:
    from opforge.builders import base
    from opforge.fast_path import lookup

    put(base, is_fixed=lambda value, depth=6: True)
    put(lookup, _is_plain=lambda value: True)


@mutant
def equal_headers_that_a_macro_names_do_not_count() -> None:
    import re

    from opforge.builders.run.reads import equal_headers

    put(equal_headers, COMPUTED=re.compile(rb"(?!)"))


@mutant
def links_on_the_way_to_folders_of_headers_do_not_count() -> None:
    from opforge.builders import base

    put(base, _links=lambda builder: [])


@mutant
def any_folder_with_a_v2_is_a_store() -> None:
    from opforge.cache import current_store, staging

    put(current_store, is_own=lambda *arguments: True, has_tag=lambda *arguments: True)
    put(staging, is_own_name=lambda *arguments: True, has_tag=lambda *arguments: True)


@mutant
def archives_are_no_inputs() -> None:
    from opforge.builders.run import attempt

    real = attempt.reads_of_step
    put(attempt, reads_of_step=lambda job, work, step, *rest: real(job, work, step, *rest) if step.unit else [])


@mutant
def names_that_are_asked_for_do_not_count() -> None:
    _replace_questions(names=frozenset(), expressions=frozenset())


@mutant
def the_date_does_not_count() -> None:
    _replace_questions(variables=frozenset())


def _replace_questions(**values: object) -> None:
    """Makes every source ask less than it does."""
    from opforge.builders.run.reads import questions

    real = questions.in_files
    put(questions, in_files=lambda *rest: {path: asked._replace(**values) for path, asked in real(*rest).items()})


@mutant
def a_nearer_file_above_a_folder_is_not_looked_for() -> None:
    from opforge.builders.run.reads import provenance

    real = provenance._names_below
    put(provenance, _names_below=lambda *arguments: {name for name in real(*arguments) if ".." not in name})


@mutant
def what_the_assembler_reads_does_not_count() -> None:
    from opforge.builders.run.reads import assembled
    from opforge.builders.toolchains.discovery import probe

    accepts = probe._accepts
    put(probe, _accepts=lambda argv, *words: not any("--MD" in word for word in words) and accepts(argv, *words))
    put(assembled, may_read=lambda *arguments: False)


@mutant
def a_record_lacks_what_the_assembler_reads_and_no_one_compares() -> None:
    """Shows in a change of what the observer saw alone, or by a rule that knows of such files."""
    from support.observer import compare

    from opforge.builders.run.reads import assembled, files_read

    put(assembled, may_read=lambda *arguments: False)
    put(files_read, _is_compilers_output=lambda path: True)
    put(compare, compare=lambda build: compare.Comparison((), (), {}))


@mutant
def headers_that_appear_are_not_looked_for() -> None:
    from opforge.cache.records import validity

    put(validity, appeared=lambda *arguments: None)


@mutant
def a_memory_watches_the_folders_of_the_build_alone() -> None:
    from opforge.cache.records import validity

    put(validity, watched=lambda *arguments: ())


@mutant
def a_memory_does_not_watch_folders() -> None:
    from opforge.cache.records import validity

    real = validity.Observation.stamps
    put(
        validity.Observation,
        stamps=lambda seen, *compared: real(seen, *({**inputs, "folders": []} for inputs in compared)),
    )
    put(validity, watched=lambda *arguments: ())


@mutant
def a_memory_does_not_watch_absent_paths() -> None:
    from opforge.builders.lookup import remembered_lookups

    put(remembered_lookups, absent_paths=lambda spec: [])


@mutant
def a_memory_does_not_hold_variables() -> None:
    import os

    from opforge.builders import toolchains
    from opforge.fast_path import lookup

    names = (b"PATH", b"CXX")
    put(toolchains, plan_variables=lambda spec: [(name, os.environb.get(name, b"")) for name in names])
    put(lookup, variables=lambda more=(): [(name, os.environb.get(name, b"")) for name in names])


@mutant
def a_memory_does_not_watch_programs() -> None:
    from opforge.builders.lookup import remembered_lookups

    real = remembered_lookups.remember
    put(remembered_lookups, remember=lambda lookup, programs, used, *rest: real(lookup, programs, {}, *rest))
    put(remembered_lookups, with_compiler=lambda match, *_rest: match)


@mutant
def a_process_does_not_watch_programs() -> None:
    from opforge.builders.lookup import remembered_lookups

    put(remembered_lookups, with_compiler=lambda match, *_rest: match)


@mutant
def a_stamp_is_a_size_and_a_time() -> None:
    from opforge.cache.filesystem.disk import Disk, Stamp
    from opforge.foundation import remembered_values

    stamp, flat = Disk.stamp, remembered_values.stamps_of

    def short(disk: Disk, path: str) -> Stamp | None:
        full = stamp(disk, path)
        return full and Stamp(full.size, full.mtime_ns, 0, 0)

    def short_flat(*arguments: object) -> list[int]:
        return [0 if at % 4 > 1 and number >= 0 else number for at, number in enumerate(flat(*arguments))]

    put(Disk, stamp=short)
    put(remembered_values, stamps_of=short_flat)


@mutant
def variables_of_compilers_are_in_no_key() -> None:
    from opforge.builders.toolchains.host import HostToolchain

    identity = HostToolchain.identity
    put(HostToolchain, environment=lambda toolchain: ())
    put(HostToolchain, identity=lambda toolchain: [pair for pair in identity(toolchain) if pair[0] != "search"])


@mutant
def a_list_that_the_users_flags_request_is_the_list_of_headers() -> None:
    from opforge.builders import planner

    put(planner, _without_lists=tuple)


@mutant
def the_users_flags_are_in_no_key() -> None:
    from opforge.builders import planner
    from opforge.builders.lookup import finder
    from opforge.builders.run import planned_build
    from opforge.builders.toolchains.host import env_words

    make = planner.make_plan

    def make_plan(spec: object, toolchain: object) -> object:
        plan = make(spec, toolchain)
        words = {word for name in ("CPPFLAGS", "CXXFLAGS") for word in env_words(name)}
        key = plan._replace(compile_flags=tuple(flag for flag in plan.compile_flags if flag not in words)).key
        return type("Plan", (type(plan),), {"key": key})(*plan)

    put(finder, make_plan=make_plan)
    put(planned_build, make_plan=make_plan)


@mutant
def an_object_is_taken_whatever_it_was_compiled_from() -> None:
    from opforge.builders.run import object_reuse
    from opforge.cache.records.validity import Observation

    class Unchanged(Observation):
        def problem(self, *inputs: object) -> None:
            return None

    put(object_reuse, Observation=Unchanged)


@mutant
def a_depfile_is_split_at_unicode_white_space() -> None:
    from opforge.builders.run.reads import files_read

    real = files_read.read_depfile
    put(files_read, read_depfile=lambda path, folder: [part for name in real(path, folder) for part in name.split()])


@mutant
def a_second_load_sees_the_ops_own_files_only() -> None:
    from opforge.builders import base
    from opforge.cache.filesystem.disk import Disk
    from opforge.foundation.remembered_values import FlatStamps

    def is_current(loaded: base.Loaded, builder: base.OpBuilder) -> bool:
        own = FlatStamps.of(pair for pair in loaded.watched.pairs() if pair[0].startswith(builder.folder))
        return Disk().flat_stamps(own.paths) == [*own.numbers]

    put(base.Loaded, is_current=is_current)


@mutant
def a_process_has_one_library_of_a_name() -> None:
    from opforge.fast_path import library

    first: dict[str, object] = {}
    load = library.load

    def of_name(op: str, opened: object) -> object:
        return first.setdefault(op, opened) if opened else None

    put(library, load=lambda entry, *rest: of_name(entry.record["op"], load(entry, *rest)))


@mutant
def a_file_of_arguments_is_read_as_a_shell_reads_it() -> None:
    import shlex

    from opforge.builders.declaration import flag_paths
    from opforge.builders.run.reads import files_read

    def words_in(path: str) -> list[str]:
        try:
            with open(path) as file:
                return shlex.split(file.read())
        except (OSError, ValueError):
            return []

    put(flag_paths, words_in=words_in)
    put(files_read, words_in=words_in)
