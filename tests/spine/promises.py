"""Each promise of README, SECURITY.md and the concepts page, with the test that tries it.

`test_promises.py` fails if a sentence of these pages is neither here nor in `NOT_PROMISED`, if no page has a sentence
any more, and if a test is not there or `make test` does not run it.
"""

from __future__ import annotations

from typing import NamedTuple

README, SECURITY, CONCEPTS = "README.md", "SECURITY.md", "docs/concepts.md"
PAGES = (README, SECURITY, CONCEPTS)


class Promise(NamedTuple):
    """A sentence of a page, by its first words, and the test that tries it."""

    page: str
    sentence: str
    test: str
    """A file below tests/, and a function or a method in it."""
    later: str = ""
    """Why it is a test of `make test-all`: it needs what `make test` does not install, or takes seconds."""


def _of(page: str, *rows: tuple[str, ...]) -> list[Promise]:
    return [Promise(page, *row) for row in rows]


BUILDS, FAULTS, OTHERS = "spine/test_builds.py::", "spine/test_faults.py::", "spine/test_other_users.py::"
REMOTES, PACKAGES, OPS = "spine/test_remotes.py::", "spine/test_packages.py::", "spine/test_ops.py::"
COMMANDS, SHIPPING, SITES = "spine/test_commands.py::", "spine/test_shipping.py::", "spine/test_sites.py::"
NAMESPACES, VOLUMES = "spine/test_user_namespaces.py::", "spine/test_shared_volumes.py::"
TRUST, FETCHED = "unit/foundation/test_file_owners.py::", "unit/remote/trust/test_fetch_trust.py::"
FRESH = "unit/packages/registry/test_freshness.py::"
EDITED = BUILDS + "test_the_op_of_the_readme_is_edited_and_loaded_beside_the_old_one"
LOADED = BUILDS + "test_load_takes_what_is_loaded_then_a_layers_then_the_caches_and_builds_otherwise"
LAYERED = BUILDS + "test_a_layer_works_without_the_compiler_and_compares_the_ops_own_files"
COMPARED = BUILDS + "test_the_files_the_compiler_and_the_flags_are_compared"
PACKED = PACKAGES + "test_a_package_is_packed_signed_published_installed_from_a_server_locked_and_loaded_by_name"
JITS = "unit/jits/test_pages.py::TestFetched::"
ADDITIONS = "unit/accelerator/interface/test_external_builders.py::"
WITHDRAWN = REMOTES + "test_what_its_signer_has_withdrawn_is_refused_and_no_longer_loaded"
UNSIGNED = REMOTES + "test_unsigned_offers_are_for_folders_and_this_machine_and_only_from_the_users_settings"
BUILT_AHEAD = COMMANDS + "test_build_ops_builds_ahead_of_time_and_ls_verify_inspect_rm_know_it"
CACHED = COMMANDS + "test_the_cache_explains_a_miss_counts_and_pins"

PROMISES = [
    *_of(
        README,
        ("opforge builds, caches, packages, ships and loads", EDITED),
        ("Both can also run on top of it.", PACKAGES + "test_callers_of_torchs_cpp_extension_run_on_opforge_unchanged"),
        ("Write an op on torch's stable ABI", EDITED),
        ("Edit the file and call `opforge.load` again", EDITED),
        ("The new version is compiled in about a second and loaded beside", EDITED),
        (
            "An error in the source is shown as one diagnostic",
            BUILDS + "test_an_error_in_the_source_is_one_diagnostic_with_its_lines",
        ),
        ("Sources for pybind and ATen work unchanged", BUILDS + "test_a_source_for_pybind_and_aten_works_unchanged"),
        (
            "Each installs its requirements into `.venv`",
            "unit/project/test_makefile.py::test_a_target_installs_what_it_needs_and_only_once",
        ),
        (
            "`make run` opforge, torch and their dependencies",
            "unit/project/test_makefile.py::test_the_tests_need_as_few_packages_as_the_readme_says",
        ),
        (
            "The example trains with an op of opforge.",
            SHIPPING + "test_the_example_trains_with_an_op_of_opforges",
        ),
        ("`load()` returns the op that is already loaded in the process", LOADED),
        ("Otherwise it builds the op.", LOADED),
        ("64 processes, one cold op | one build", FAULTS + "test_of_eight_processes_one_builds"),
        (
            "a build that is killed | the next `load()` builds",
            FAULTS + "test_a_killed_build_leaves_no_compiler_and_the_next_load_builds",
        ),
        (
            "a damaged library in the cache | set aside and built again",
            FAULTS + "test_a_damaged_library_is_set_aside_and_built_again",
        ),
        (
            "a header that changed and has an old time stamp | is noticed",
            BUILDS + "test_a_header_that_changed_and_has_an_old_time_stamp_is_noticed",
        ),
        (
            "binaries to ship | one, on torch's stable ABI",
            BUILDS + "test_one_library_on_the_stable_abi_serves_each_torch",
        ),
        (
            "If opforge refuses something, the error states the reason",
            "unit/test_errors.py::test_the_message_says_what_to_do_and_is_a_sentence",
        ),
        (
            "**Your code stays.** DeepSpeed, callers of `torch.utils.cpp_extension`",
            PACKAGES + "test_callers_of_torchs_cpp_extension_run_on_opforge_unchanged",
        ),
        ("Declare the op as a class to build it ahead of time", BUILT_AHEAD),
        ("Both warn of such a module.", SHIPPING + "test_a_module_that_loads_while_it_is_imported_is_warned_of"),
        (
            "`OPFORGE_CPP_EXTENSION=torch-facade pip wheel .` makes one wheel",
            "compile/compat/test_setup_on_facade.py::test_one_variable_makes_a_wheel_for_every_torch_and_python",
            "takes seconds: builds two wheels by pip",
        ),
        (
            "A project ships prebuilt ops inside its own wheel with four lines",
            SHIPPING + "test_a_project_ships_its_ops_in_its_wheel_with_four_lines",
        ),
        ("An op with its Python can also have a name and a version", PACKED),
        ("A package is packed and audited for each target, signed, and published", PACKED),
        ("Projects install it, lock it, and load it by name.", PACKED),
        ("It has the form of the Hugging Face hub's kernels.", PACKED),
        (
            "A model can run kernels of packages without a change of its code",
            PACKAGES + "test_a_model_runs_the_kernels_of_a_package_inside_a_scope_alone",
        ),
        (
            "`opforge.save_program` puts an exported program and its ops into one file",
            PACKAGES + "test_a_program_and_its_ops_are_one_file_that_needs_no_compiler_and_is_checked",
        ),
        (
            "A machine without the device can build for it",
            "compile/cli/test_build_devices.py::",
            "needs nvcc, hipcc, Triton and zig",
        ),
        (
            "Extensions in CUDA are compiled the same way",
            "compile/compat/test_setup_on_facade.py::"
            "test_an_extension_in_cuda_is_a_wheel_that_loads_beside_a_torch_without_cuda",
            "needs nvcc",
        ),
        (
            '`opforge.load("scale", ["scale.cu", "scale.cpp"])` compiles CUDA sources',
            "compile/compat/test_cuda.py::",
            "needs nvcc",
        ),
        (
            "A Triton op's entry contains its machine code and a launcher.",
            "compile/triton/test_build.py::",
            "needs triton",
        ),
        (
            "It needs neither Triton nor a compiler on the machine that runs it.",
            "compile/triton/test_launch.py::",
            "needs triton",
        ),
        ("The interface is DeepSpeed's, method by method.", "contract/test_accelerators.py::"),
        (
            "Other packages can add more ([docs/external.md]",
            "unit/accelerator/test_select.py::test_an_accelerator_of_another_package_is_preferred",
        ),
        ("`CPUAdam`, `CPUAdagrad` and `CPULion` are", OPS + "test_cpu_optimizers_take_the_short_dtypes"),
        ("`FusedAdam`, `FusedLamb` and `FusedLion` accept", OPS + "test_lamb_is_the_reference"),
        (
            "`QuantizerBuilder` is the op for group quantization",
            OPS + "test_groups_are_quantized_and_come_back_within_a_step",
        ),
        (
            "`FPQuantizer` quantizes to floating-point codes",
            OPS + "test_floats_of_few_bits_come_back_within_their_precision",
        ),
        ("`evoformer_attention` and `opforge.ops.sparse_attention`", OPS + "test_evoformer_attention_is_attention"),
        ("`opforge.ops.aio` reads and writes tensors", OPS + "test_aio_writes_and_reads_a_tensor"),
        (
            "`opforge report` |",
            REMOTES + "test_report_and_config_show_this_machine_and_no_secret_key",
        ),
        ("`opforge check` |", COMMANDS + "test_check_compares_an_op_with_its_reference"),
        (
            "`opforge config` |",
            REMOTES + "test_report_and_config_show_this_machine_and_no_secret_key",
        ),
        ("`opforge completion` |", COMMANDS + "test_a_shell_completes_words"),
        ("`opforge rm` |", BUILT_AHEAD),
        ("`opforge new` |", COMMANDS + "test_a_new_project_is_created"),
        ("`build-ops` |", BUILT_AHEAD),
        ("`opforge fetch` |", "unit/remote/test_fetch_for_others.py::test_the_command_fetches_for_another_level"),
        ("`opforge cache explain`,", CACHED),
        ("`opforge inspect` |", BUILT_AHEAD),
        (
            "`opforge repair-wheel` |",
            "compile/shipping/test_repaired_wheels.py::test_an_op_of_a_repaired_wheel_is_loaded_with_the_library_that_was_copied",
            "needs auditwheel",
        ),
        (
            "`opforge split-wheel` |",
            "compile/shipping/test_wheel_variants.py::test_each_variant_holds_the_code_of_its_label_alone_and_the_plain_wheel_all",
            "builds wheels",
        ),
        (
            "`opforge bench` |",
            "unit/bench/test_command.py::test_a_case_of_ones_own_is_measured_and_all_samples_are_written",
        ),
        ("`opforge tune` |", "unit/tuning/test_run.py::test_a_config_that_is_faster_is_written_and_used"),
        ("`opforge compile-commands` |", COMMANDS + "test_compile_commands_are_written_for_clangd"),
        ("`opforge launch` |", COMMANDS + "test_a_script_is_launched_in_processes_that_are_bound_to_cores"),
        ("`opforge port` |", COMMANDS + "test_code_for_one_vendors_device_is_ported"),
        ("`opforge why-not` |", COMMANDS + "test_what_keeps_a_torch_extension_from_one_binary_is_listed"),
        ("`opforge pack` |", PACKED),
        ("`opforge install` |", PACKED),
        ("`opforge lock` |", PACKED),
        ("`opforge ls` |", "unit/cli/test_cache.py::test_what_acts_on_a_store_takes_its_url_and_nothing_of_the_cache"),
        (
            "`opforge verify` |",
            "unit/remote/commands/test_remote_commands.py::TestCommands::test_from_a_new_key_to_a_verified_remote",
        ),
        ("`opforge gc` |", CACHED),
        (
            "`opforge publish` |",
            REMOTES + "test_an_op_is_built_once_signed_and_fetched_from_a_server_without_a_compiler",
        ),
        ("`opforge withdraw` |", WITHDRAWN),
        (
            "`opforge mirror` |",
            "unit/packages/registry/test_mirror.py::test_a_copy_serves_with_the_signatures_of_the_first",
        ),
        ("`opforge key list`,", REMOTES + "test_a_key_that_may_not_sign_the_op_or_was_revoked_is_refused"),
        (
            "Each has `--help` with examples, and stable exit codes.",
            "unit/cli/test_commands.py::test_the_help_of_every_command_has_an_example_that_begins_with_its_name",
        ),
        (
            "All that show something have `--json`.",
            REMOTES + "test_report_and_config_show_this_machine_and_no_secret_key",
        ),
        ("The other vendors' accelerators pass one contract test", "contract/test_accelerators.py::"),
        (
            "Other systems are refused.",
            "unit/project/test_architecture.py::test_the_import_error_on_another_system_names_the_supported_ones",
        ),
    ),
    *_of(
        SECURITY,
        ("They are loaded without being built again.", LAYERED),
        ("**Libraries that a remote offers**", REMOTES + "test_an_offer_of_a_key_that_nobody_trusts_is_refused"),
        (
            "your own store | you and root",
            OTHERS + "test_a_store_that_he_has_made_is_refused_whomever_is_trusted_for_layers",
        ),
        (
            "a layer | you, root, and the users in",
            OTHERS + "test_what_he_has_replaced_in_a_layer_is_loaded_only_if_he_is_a_trusted_owner",
        ),
        (
            "the ops inside an installed package | the owner of",
            "unit/foundation/test_file_owners.py::test_another_users_folder_is_problem_of",
        ),
        (
            "Owner and mode are judged for each component of the path",
            OTHERS + "test_a_link_of_his_on_the_way_is_refused_and_one_of_ours_is_followed",
        ),
        ("Each component must belong to an accepted owner", OTHERS + "test_what_he_may_write_in_a_layer_is_not_loaded"),
        (
            "A folder with the sticky bit, such as `/tmp`",
            OTHERS + "test_he_can_change_nothing_in_a_store_below_a_sticky_folder",
        ),
        (
            "A group that has no other member than you counts as you, unless",
            TRUST + "test_a_private_group_does_not_hide_who_else_is_in_an_access_control_list",
        ),
        (
            "So no other user can exchange a file between its check and its loading.",
            OTHERS + "test_nothing_can_be_exchanged_between_the_check_and_the_loading",
        ),
        (
            "A place that fails these rules is refused with the reason.",
            FAULTS + "test_a_folder_that_others_may_write_is_refused_with_the_reason_and_left_alone",
        ),
        (
            "No library is loaded that such a user could have written or changed.",
            OTHERS + "test_what_he_has_replaced_in_a_layer_is_loaded_only_if_he_is_a_trusted_owner",
        ),
        (
            "A library is compared with its SHA-256 before it is loaded.",
            FAULTS + "test_a_damaged_library_is_set_aside_and_built_again",
        ),
        (
            "Above 2 MiB it is hashed when its time stamps differ",
            "unit/cache/records/test_entry.py::test_a_large_library_is_trusted_by_its_stamp_and_hashed_on_request",
        ),
        (
            "An entry is used only in the folder that its own record names",
            FAULTS + "test_an_entry_is_used_in_the_folder_alone_that_its_record_names",
        ),
        ("If in doubt, the op is built again.", FAULTS + "test_a_record_that_was_changed_is_a_damage"),
        (
            "opforge creates its files with mode 0600",
            FAULTS + "test_files_have_mode_0600_and_folders_0700_whatever_the_umask",
        ),
        (
            "Files of a layer become readable for others once they are complete.",
            FAULTS + "test_files_of_a_layer_become_readable_once_they_are_complete",
        ),
        (
            "opforge deletes and changes only files that it made",
            FAULTS + "test_what_is_removed_is_the_stores_own_and_no_link_is_followed",
        ),
        (
            "It follows no link when it removes or writes something",
            FAULTS + "test_what_is_removed_is_the_stores_own_and_no_link_is_followed",
        ),
        (
            "It writes into no store with a link to a folder inside",
            FAULTS + "test_a_store_behind_a_link_works_and_one_with_a_link_inside_is_refused",
        ),
        (
            "A folder that holds other files and no store is refused.",
            FAULTS + "test_a_folder_that_holds_other_files_is_no_store",
        ),
        (
            "A pipe, a device, a link, a file of terabytes or damaged JSON",
            FAULTS + "test_whatever_lies_in_place_of_a_file_is_neither_waited_for_nor_read_without_bound",
        ),
        (
            "Nothing of an offer is parsed before a trusted key's signature",
            REMOTES + "test_a_changed_byte_of_an_offer_or_a_library_is_refused",
        ),
        (
            "The key must not have ended or been revoked",
            REMOTES + "test_a_key_that_may_not_sign_the_op_or_was_revoked_is_refused",
        ),
        (
            "A trust file with a field that is not known is an error",
            REMOTES + "test_a_trust_file_with_an_unknown_field_stops_fetching",
        ),
        (
            "Signatures are always verified; no setting",
            PACKAGES + "test_a_package_of_a_key_that_nobody_trusts_is_not_installed",
        ),
        (
            "An offer is for one description, and states what it needs",
            PACKAGES + "test_a_package_that_was_changed_in_the_registry_is_not_installed",
        ),
        (
            "A remote cannot hand out a signed library of another op",
            REMOTES + "test_a_signed_offer_of_another_op_is_not_taken_in_its_place",
        ),
        ("An artifact that its signer has withdrawn from use is refused and", WITHDRAWN),
        (
            "Fetching and installing from a store stops if its list of withdrawals",
            FETCHED + "TestWithdrawing::test_an_older_list_does_not_take_back_what_was_withdrawn",
        ),
        (
            "A list that is older than the trust file allows",
            FETCHED + "TestWithdrawing::test_a_list_that_is_too_old_stops_fetching_if_the_trust_file_says_so",
        ),
        (
            "The record of lists that were seen is in",
            "unit/remote/trust/test_seen.py::TestNothingMakesALoadForget::test_caches_that_are_removed",
        ),
        (
            "A package is installed only if the newest list of its signer",
            FRESH + "TestTheIndexIsACache::test_a_release_that_no_list_names_is_not_there",
        ),
        (
            "No index of a store, old or forged, hides",
            FRESH + "TestTheIndexIsACache::test_newer_releases_that_are_missing_hide_no_older_one",
        ),
        (
            "If the store lacks a newer release that a list names, a note",
            FRESH + "TestTheIndexIsACache::test_a_release_that_is_held_back_with_its_index_is_missed",
        ),
        (
            "A list of one key that is damaged or held back does not stop",
            FRESH + "TestSeveralKeys::test_a_damaged_list_of_one_key_stops_no_other",
        ),
        (
            "Answers, offers, their number, and what a blob unpacks to are bounded.",
            REMOTES + "test_an_endless_answer_is_cut",
        ),
        (
            "Nothing of a blob is written outside its folder, and nothing is executed",
            "unit/project/test_fuzz_targets.py::"
            "test_mutated_blobs_escape_nowhere_execute_nothing_and_take_bounded_memory_and_time",
        ),
        (
            "An entry is published only if its library has the size and the SHA-256",
            "unit/cache/test_admit.py::test_a_record_that_does_not_fit_its_entry_is_refused",
        ),
        (
            "A bad answer or offer causes a warning, and the op is built.",
            REMOTES + "test_a_bad_answer_costs_a_warning_and_the_op_is_built",
        ),
        (
            "A secret key is a file that only you can read",
            REMOTES + "test_report_and_config_show_this_machine_and_no_secret_key",
        ),
        ("`?unsigned=1` is accepted for folders", UNSIGNED),
        (
            "In a user namespace, such as that of a rootless container",
            NAMESPACES + "test_a_private_group_is_not_known_by_the_number_that_a_namespace_gives_it",
        ),
        (
            "If no folder was named, ops are built in a private folder",
            VOLUMES + "test_renaming_the_private_folder_while_a_build_runs_changes_nothing",
        ),
        (
            "It has mode 0700, and if others may write its parent",
            VOLUMES + "test_renaming_the_private_folder_while_a_build_runs_changes_nothing",
        ),
        (
            "The same applies to the folders of a program that is loaded.",
            "unit/cache/store/test_held.py::"
            "test_a_temporary_folder_is_held_where_others_may_rename_it_and_let_go_at_the_end",
        ),
        (
            "Each applies only to the folders of a store and of layers",
            VOLUMES + "test_settings_and_keys_are_not_read_from_a_folder_that_is_named",
        ),
        (
            "`OPFORGE_TRUSTED_FOLDERS` names a folder",
            VOLUMES + "test_a_folder_is_named_exactly_and_its_owner_is_judged_all_the_same",
        ),
        (
            "`OPFORGE_TRUSTED_OWNERS` names a user",
            OTHERS + "test_a_store_that_he_has_made_is_refused_whomever_is_trusted_for_layers",
        ),
        (
            "a user namespace that does not map root",
            NAMESPACES + "test_what_is_not_mapped_is_trusted_above_a_cache_alone",
        ),
        (
            "In a namespace that does not map you either",
            NAMESPACES + "test_a_namespace_that_maps_nobody_builds_in_a_private_folder_and_says_why",
        ),
        (
            "No store is used there, no settings, keys or memory are read",
            NAMESPACES + "test_a_namespace_that_maps_nobody_builds_in_a_private_folder_and_says_why",
        ),
        (
            "A refused cache folder that you named, or a refused layer, stays an error.",
            FAULTS + "test_a_folder_that_others_may_write_is_refused_with_the_reason_and_left_alone",
        ),
        (
            "Files and folders of the ops inside an installed package may be links",
            "compile/shipping/test_shipped_ops.py::test_a_wheel_whose_files_or_folders_are_links_is_served",
            "takes seconds: installs a wheel",
        ),
        ("Then the real file is judged with all folders above it.", TRUST + "test_a_link_is_judged_by_its_target"),
        (
            "Artifacts that were fetched before follow one rule",
            FETCHED + "TestTrustThatChanges::test_a_revoked_key_stops_what_was_fetched",
        ),
        (
            "After each change of the trust file their signatures are verified again",
            FETCHED + "test_a_trust_file_is_compared_by_a_remembered_look_up",
        ),
        (
            "If the trust file is damaged, only artifacts",
            FETCHED + "TestTrustThatChanges::test_what_was_fetched_before_still_loads_with_a_damaged_trust_file",
        ),
        (
            "If other users could have changed the trust file, or it no longer",
            FETCHED + "TestTrustThatChanges::test_a_trust_file_that_is_gone_stops_what_was_fetched",
        ),
        ("An artifact that its signer has withdrawn from use is removed once", WITHDRAWN),
        (
            "This machine signs and publishes nothing that it fetched.",
            "unit/remote/commands/test_damaged_records.py::TestNothingIsSignedThatWasNotMadeHere::test_all_leaves_it_out",
        ),
        (
            "A page of compiled graphs holds graphs that were compiled here",
            "compile/graphs/test_whose_graphs.py::TestFetched::test_after_a_revocation_nothing_of_it_runs",
            "takes seconds: compiles graphs",
        ),
        (
            "Scopes of several names that are open at the same time",
            "compile/graphs/test_whose_graphs.py::TestFetched::test_it_serves_another_name_while_its_own_scope_is_open_alone",
            "takes seconds: compiles graphs",
        ),
        (
            "Code that a JIT compiled (`opforge.warm`) is used if its signing key",
            JITS + "test_a_key_for_another_adapter_or_label_brings_nothing",
        ),
        (
            "**The keys inside are the JIT's own, so such a key signs code",
            JITS + "test_it_is_used_without_the_remote_afterwards",
        ),
        (
            "A page for the GPU cannot bring code of the host",
            JITS + "test_a_key_for_code_of_the_gpu_cannot_bring_code_of_the_host",
        ),
        (
            "A program (`opforge.load_program`) is the one that its file is named after",
            "compile/programs/test_programs.py::TestNames::test_a_file_of_another_name_is_refused_unless_that_is_expected",
            "takes seconds: exports programs",
        ),
        (
            "A folder and a link to it are the same store",
            "unit/remote/trust/test_seen.py::TestState::test_another_spelling_of_a_store_is_the_same_store",
        ),
        (
            "A list of withdrawals with a date in the future is refused",
            "unit/remote/test_clocks.py::test_a_list_with_a_wrong_date_is_not_published",
        ),
        (
            "A remote is paused only for its own errors.",
            "unit/remote/test_blame.py::test_what_a_store_answers_is_its_own",
        ),
        (
            "A damaged trust file, a missing key and a full disk are errors",
            "unit/remote/test_blame.py::test_an_error_of_this_machine_is_no_remotes",
        ),
        (
            "A lost or damaged blob or statement affects no other one.",
            "unit/remote/commands/test_damaged_records.py::"
            "TestATuningResultThatIsDamaged::test_the_others_are_published_and_it_is_named",
        ),
        (
            "`opforge mirror` copies artifacts that were signed by a key",
            "unit/remote/test_hostile_mirror.py::TestStatements::test_a_key_that_is_not_trusted_here",
        ),
        (
            "It drops and replaces no statement, signature or withdrawal",
            "unit/remote/test_hostile_mirror.py::test_whatever_a_source_holds_the_target_keeps_what_it_has",
        ),
        (
            "`opforge mirror cache:` does the same with",
            SITES + "test_a_site_without_network_and_compiler_loads_what_another_has_signed",
        ),
        (
            "Of **your own key**: it signs artifacts that were made on this machine.",
            "unit/remote/commands/test_damaged_records.py::"
            "TestNothingIsSignedThatWasNotMadeHere::test_by_its_name_it_is_an_error",
        ),
        (
            "It refuses artifacts that were fetched or came from a layer",
            "unit/remote/commands/test_damaged_records.py::TestNothingIsSignedThatWasNotMadeHere::test_all_leaves_it_out",
        ),
        (
            "A program is refused if a part of it came from elsewhere",
            "compile/programs/test_programs.py::TestRefused::test_of_what_another_program_brought_ones_own_alone_is_signed",
            "takes seconds: exports programs",
        ),
        ("`OPFORGE_PARANOID=1` hashes every file", BUILDS + "test_paranoid_hashes_each_file_that_an_op_was_built_from"),
        (
            "The message of a wait names the holder of the lock",
            FAULTS + "test_a_wait_says_who_holds_the_lock_and_ends_in_time",
        ),
    ),
    *_of(
        CONCEPTS,
        (
            "The result of a build is an **entry**",
            BUILDS + "test_an_entry_is_never_changed_and_its_name_is_that_of_what_was_read",
        ),
        ("Entries are never changed.", BUILDS + "test_an_entry_is_never_changed_and_its_name_is_that_of_what_was_read"),
        ("A store that is only read is a **layer**.", LAYERED),
        (
            "A **remote** is a place from which signed entries are fetched",
            REMOTES + "test_an_op_is_built_once_signed_and_fetched_from_a_server_without_a_compiler",
        ),
        (
            "Is it *valid*: are the files that it was built from",
            BUILDS + "test_a_file_that_appears_before_one_that_was_read_is_noticed",
        ),
        (
            "Does it *fit*: does this machine have the processor",
            "unit/remote/test_fetch.py::test_an_offer_that_does_not_fit_is_refused_before_its_blob_is_fetched",
        ),
        ("For an entry of the cache the files, the compiler and the flags", COMPARED),
        ("For an entry of a layer only the op's own files are compared", LAYERED),
        ("Layers and remotes are asked by it.", "unit/remote/test_fetch.py::test_another_source_gets_nothing"),
        (
            "Locks are by plan, so that two processes never build the same plan.",
            FAULTS + "test_of_eight_processes_one_builds",
        ),
        ("After a build every file that was read is known.", BUILDS + "test_an_archive_that_is_linked_is_compared"),
        (
            "The **result key** names the entry.",
            BUILDS + "test_an_entry_is_never_changed_and_its_name_is_that_of_what_was_read",
        ),
        ("No key holds an absolute path or a time", BUILDS + "test_a_store_and_the_sources_can_be_moved"),
        ("pin | a mark that keeps an op's entries whatever the limits are", CACHED),
        ("origin | where a loaded op came from", LOADED),
    ),
]

NOT_PROMISED = {
    README: {
        "compares with other projects": (
            "It does the work of",
            "opforge | torch",
            "an op's first build",
            "memory of one compiler",
            "edit, compile, run",
            "a hit: `import opforge`",
            "AdamW, 1000 tensors",
            "Measured on two cores",
            "The four libraries of torch-scatter took",
            "With torch 2.14.1",
            "The rows on",
        ),
        "says where more is": (
            "[",
            "**",
            "command | what it does",
            "`make docs` builds them",
            "Moving over takes",
            "`make test-all` runs",
        ),
        "says what a reader needs or must not do": (
            "Both need Python",
            "It loads the op in this way",
            "Do not call `load()`",
            "`build-ops` and `opforge cache explain` import",
        ),
        "says what was tested": (
            "x86-64 Linux: everything.",
            "CUDA and HIP sources are compiled",
            "Without a GPU the tests run",
            "macOS imports",
            "Apache-2.0.",
        ),
    },
    SECURITY: {
        "introduces what follows": (
            "opforge compiles code and loads",
            "This page says",
            "**Sources that you name**",
            "Compiling a source",
            "**Programs that",
            "**Libraries in your store**",
            "The owner of the store",
            "The owners that opforge accepts",
            "place | accepted owners",
            "Against **",
            "Against an attacker who **",
            "Three settings and places weaken these rules.",
            "where | rules that still hold",
        ),
        "is advice": (
            "Do not take over",
            "Delete the folder, or choose",
            "Give each user",
            "Check them before",
            "Report a way",
            "Add the version",
            "Fixes are made",
        ),
        "is not promised": (
            "An attacker who controls a remote can still withhold",
            "The holder of a key",
            "A machine that has not seen a list",
            "**One key signs alone.**",
            "Each machine revokes it",
            "**Protection",
            "A store that several",
            "A source can include",
            "A user who sets them",
            "**Secrecy.**",
            "**Headers of",
            "**Availability.**",
            "Under `opforge.compat.cpp_extension`, an extension that opforge cannot store",
            "[docs/",
        ),
        "says how this is tested": ("Tests attack", "`tests/fuzz/blobs.py`"),
    },
    CONCEPTS: {
        "defines a word": (
            "An **op** is",
            "Its **declaration**",
            "A **builder** is",
            "They lie in",
            "Each user has",
            "![",
            "It builds and fetches",
            "Two questions",
            "Both must fit",
            "A look-up goes",
            "Each step knows",
            "Before a compiler",
            "With the compiler",
            "[Decision",
            "word |",
            "ABI |",
            "accelerator |",
            "admission |",
            "builder |",
            "cache |",
            "description |",
            "entry |",
            "fake kernel |",
            "fit |",
            "hit, miss |",
            "kernel package |",
            "kernel root |",
            "layer |",
            "offer |",
            "plan |",
            "portable |",
            "record |",
            "remote |",
            "stamp |",
            "store |",
            "target |",
            "toolchain |",
            "trusted tree |",
        ),
    },
}
"""Page -> reason -> the first words of sentences that promise nothing."""
