"""Defects that are put back by hand: one for each promise whose breach is a wrong result, foreign code or lost data.

`python tests/mutants` applies each to a copy of the checkout, and runs the tests of `make test` until one fails.
"""

from __future__ import annotations

from typing import NamedTuple

SPINE = "tests/spine/test_"


class Edit(NamedTuple):
    """A defect: a text of one file, which must be there once, and what takes its place."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What is tried first, as pytest takes it. The rest of the tier follows if none of these fails."""


VALIDITY, LIBRARY, TRUST = (
    "cache/records/validity.py",
    "src/opforge/fast_path/library.py",
    "src/opforge/foundation/file_owners.py",
)
RULES, KEYS = "ops/csrc/include/opforge/rules.h", "remote/signatures/trust_file.py"
BUILDS, FAULTS, OTHERS = SPINE + "builds.py", SPINE + "faults.py", SPINE + "other_users.py"
REMOTES, PACKAGES, OPS = SPINE + "remotes.py", SPINE + "packages.py", SPINE + "ops.py"
INTEGRITY = ("tests/unit/cache/records", "tests/unit/cache/store", FAULTS)
SIGNATURES = ("tests/unit/remote/trust", "tests/unit/remote/test_fetch.py", REMOTES)

EDITS: dict[str, Edit] = {
    # Wrong results: a library that was built from other files, by another compiler, or that computes something else.
    "a_changed_file_is_not_noticed": Edit(
        VALIDITY,
        "            if digest != recorded:\n",
        "            if False:\n",
        ("tests/unit/cache/records/test_validity.py", BUILDS),
    ),
    "a_header_that_shadows_another_is_not_noticed": Edit(
        VALIDITY,
        "            if _join(folder, name) not in present and listings.holds(base, name):\n",
        "            if False:\n",
        ("tests/unit/cache/records/test_validity.py", BUILDS),
    ),
    "a_file_that_is_gone_is_not_noticed": Edit(
        VALIDITY,
        "            if digest is None:\n",
        "            if False:\n",
        ("tests/unit/cache/records/test_validity.py",),
    ),
    "headers_that_a_variable_led_a_layers_maker_to_are_not_compared": Edit(
        "cache/records/entry.py",
        '        inputs += [found["inputs"]] if is_same else []\n',
        "        assert is_same is not None\n",
        ("tests/unit/builders/lookup/test_fit.py",),
    ),
    "the_variable_of_a_layers_maker_need_not_be_the_same": Edit(
        "builders/lookup/fit.py",
        "        if here and there and here != there:\n",
        "        if False:\n",
        ("tests/unit/builders/lookup/test_fit.py",),
    ),
    "the_compiler_is_in_no_key": Edit(
        "builders/toolchains/host.py",
        '        return tuple(sorted(self._info["identity"].items()))\n',
        "        return ()\n",
        (BUILDS, "tests/unit/builders"),
    ),
    "the_toolchain_is_in_no_plan_key": Edit(
        "builders/declaration/build_plan.py",
        '            "toolchain": dict(self.toolchain),\n',
        '            "toolchain": {},\n',
        ("tests/unit/builders/declaration", BUILDS),
    ),
    "the_inputs_are_in_no_result_key": Edit(
        "cache/records/inputs.py",
        "        return entry_key(plan_key, [file[:3] for file in self.files], self.answers)\n",
        "        return entry_key(plan_key, [], self.answers)\n",
        ("tests/unit/builders/declaration/test_keys.py", BUILDS),
    ),
    "a_second_load_of_a_process_compares_no_file": Edit(
        "builders/base.py",
        "        if not is_same or remembered_values.stamps_of(self._often.paths) != self._often.numbers:\n",
        "        if not is_same:\n",
        ("tests/compile/load/test_second_load.py",),
    ),
    "a_stamp_that_may_be_of_two_contents_is_trusted": Edit(
        "src/opforge/foundation/remembered_values.py",
        "RACY_NS = 2_000_000_000\n",
        "RACY_NS = -(10**12)\n",
        ("tests/unit/cache/records/test_validity.py", "tests/unit/foundation", BUILDS),
    ),
    "another_processor_fits": Edit(
        "builders/lookup/fit.py",
        '    if record["target"] not in targets:\n        return Fit(f"it is built for {record[\'target\']}, not for {spec.target}")\n',
        '    if record["target"] not in targets:\n        return Fit(rank=0)\n',
        ("tests/unit/builders/lookup", "tests/unit/remote/test_fetch.py"),
    ),
    "a_library_for_a_newer_c_library_fits": Edit(
        "builders/lookup/fit.py",
        '    if machine.glibc and version_of(floors.get("GLIBC", "0")) > version_of(machine.glibc):\n',
        "    if False:\n",
        ("tests/unit/builders/lookup",),
    ),
    "a_library_for_a_newer_torch_fits": Edit(
        "builders/lookup/fit.py",
        '        if version_of(here)[:2] < version_of(record["torch_target"]):\n',
        "        if False:\n",
        ("tests/unit/builders/lookup",),
    ),
    "what_a_precompiled_header_was_made_from_is_no_input_of_its_units": Edit(
        "builders/run/attempt.py",
        "            reads[name] += reads[making.output]\n",
        "            assert making.output in reads\n",
        ("tests/unit/builders/run/test_precompiled_header.py",),
    ),
    "the_compiler_that_a_variable_names_for_ccache_is_in_no_key": Edit(
        "builders/toolchains/discovery/programs.py",
        "    return [] if not choices or all(map(_is_compiler, _programs(argv))) else choices\n",
        "    return []\n",
        ("tests/unit/builders/toolchains/test_programs.py",),
    ),
    "a_file_of_specs_that_appears_is_not_noticed": Edit(
        "builders/toolchains/discovery/probe.py",
        '*((path, ABSENT) for path in info["absent"])',
        "",
        ("tests/unit/builders/toolchains/test_probe.py",),
    ),
    "a_file_that_changes_while_it_is_hashed_is_an_input_as_it_is_then": Edit(
        "builders/run/executor.py",
        "            if provenance.stamps(attempt.everything) != stamps:\n",
        "            if False:\n",
        ("tests/compile/builds/test_inputs.py",),
    ),
    "without_a_compiler_no_variable_counts": Edit(
        "builders/lookup/fit.py",
        "        return Fit(problem) if problem else fits(record)\n\n    return judge\n\n\ndef _variables",
        "        return fits(record)\n\n    return judge\n\n\ndef _variables",
        ("tests/unit/builders/lookup/test_fit.py",),
    ),
    "a_packages_module_is_that_of_another_callers_lock_file": Edit(
        "packages/load/get_kernel.py",
        "    key = (name, version, variant, caller, hub, *[",
        "    key = (name, version, variant, hub, *[",
        ("tests/unit/packages/registry/test_locked_callers.py",),
    ),
    "adam_corrects_no_bias": Edit(
        RULES,
        "        rate = static_cast<float>(lr * correction.second_root / correction.first);\n",
        "        rate = static_cast<float>(lr);\n",
        (OPS + "::test_adam_is_torchs_adamw",),
    ),
    "adamw_decays_by_half": Edit(
        RULES,
        "          decay(static_cast<float>(adamw_mode ? lr * weight_decay : 0.0)),\n",
        "          decay(static_cast<float>(adamw_mode ? lr * weight_decay / 2 : 0.0)),\n",
        (OPS + "::test_adam_is_torchs_adamw",),
    ),
    "adagrad_forgets_the_square": Edit(
        RULES,
        "        x[2] = fma(g, g, x[2]);\n",
        "        x[2] = fma(g, F(1.0f), x[2]);\n",
        (OPS + "::test_adagrad_is_torchs",),
    ),
    "a_read_begins_at_the_row_and_not_at_its_block": Edit(
        "ops/csrc/aio/request.cpp",
        "    block.offset = offsets[row] + done;\n",
        "    block.offset = offsets[row];\n",
        (OPS + "::test_aio_writes_and_reads_a_tensor",),
    ),
    "a_process_reduces_the_first_tensor_alone": Edit(
        "ops/csrc/shm/collectives.cpp",
        "        reduce(data + k * chunk, inputs, group.ranks(), part(bytes, chunk, k) / size);\n",
        "        reduce(data + k * chunk, inputs, 1, part(bytes, chunk, k) / size);\n",
        (OPS + "::test_shm_adds_the_tensors_of_the_processes_of_a_host",),
    ),
    # Foreign code: a library or a module that somebody else could have written.
    "a_library_is_not_compared_with_its_digest": Edit(
        LIBRARY,
        '        return None if digest.hexdigest() == record["sha256"] else "the library\'s digest differs from its record\'s"\n',
        "        return None\n",
        INTEGRITY,
    ),
    "a_library_of_another_user_is_loaded": Edit(
        LIBRARY,
        "        if status.st_uid not in owners:\n",
        "        if False:\n",
        ("tests/unit/cache/records/test_entry.py",),
    ),
    "a_library_that_others_can_write_is_loaded": Edit(
        LIBRARY,
        '        if status.st_mode & 0o022 and others_bits(status, handle) & ~allowed_write_bits:\n            return f"the library',
        '        if False:\n            return f"the library',
        INTEGRITY,
    ),
    "the_owner_of_a_folder_does_not_count": Edit(
        TRUST,
        "        if status.st_uid not in self._owners and not (\n",
        "        if status.st_uid not in self._owners and False and not (\n",
        ("tests/unit/foundation/test_file_owners.py", OTHERS),
    ),
    "a_folder_may_be_written_by_all": Edit(
        TRUST,
        "        if is_link or not others_bits(status, path) or (status.st_mode & stat.S_ISVTX and not is_last):\n",
        "        if True:\n",
        ("tests/unit/foundation/test_file_owners.py", FAULTS),
    ),
    "a_record_is_valid_in_any_folder": Edit(
        "cache/records/entry.py",
        '    is_own = is_record(record) and entry_name(record["key"], record["sha256"]) == os.path.basename(folder)\n',
        "    is_own = is_record(record)\n",
        INTEGRITY,
    ),
    "a_signature_is_of_any_bytes": Edit(
        "remote/signatures/signing.py",
        "    except (InvalidSignature, ValueError):\n        return False\n",
        "    except (InvalidSignature, ValueError):\n        return True\n",
        ("tests/unit/remote/test_signing.py", REMOTES),
    ),
    "a_key_may_sign_anything": Edit(
        KEYS, "        return any(_matches(name, glob) for glob in self.scopes)\n", "        return True\n", SIGNATURES
    ),
    "a_revoked_key_counts": Edit(KEYS, "        if self.revoked:\n", "        if False:\n", SIGNATURES),
    "a_key_never_ends": Edit(
        KEYS,
        "        if self.until and time.strftime(DATE, time.gmtime(now)) > self.until:\n",
        "        if False:\n",
        SIGNATURES,
    ),
    "a_blob_is_not_compared_with_its_statement": Edit(
        "remote/blobs.py",
        "    if digest_of(file.fileno()) != blob.sha256:\n",
        "    if False:\n",
        ("tests/unit/remote/test_blobs.py", REMOTES),
    ),
    "an_offer_is_for_any_description": Edit(
        "remote/kinds.py",
        "        return self.offer(statements.parse_as(data, self.name, topic))\n",
        '        return self.offer(statements.parse_as(data, self.name, ""))\n',
        ("tests/unit/remote/test_fetch.py", REMOTES),
    ),
    "what_was_withdrawn_is_chosen": Edit(
        "remote/take.py", "                if accepted.withdrawn:\n", "                if False:\n", SIGNATURES
    ),
    "an_older_list_of_withdrawals_is_used": Edit(
        "remote/signatures/seen.py",
        "        if newest_kept.number > stated.number:\n",
        "        if False:\n",
        ("tests/unit/remote/trust",),
    ),
    "an_old_list_of_withdrawals_is_used": Edit(
        "remote/withdrawal_lists.py",
        "        if days and now - self.date > days * 24 * 3600:\n",
        "        if False:\n",
        ("tests/unit/remote/trust",),
    ),
    "a_release_that_no_list_names_is_taken": Edit(
        "remote/accepted_statements.py",
        "            if listed and digest and listed.released_as(name) != digest:\n",
        "            if False:\n",
        ("tests/unit/packages/registry/test_freshness.py",),
    ),
    "a_copy_of_a_store_is_another_store": Edit(
        "remote/accepted_statements.py",
        'if problem := seen.problem(f"list:{listed.id}", signer.key, listed.seen, must_know, _shown):',
        'if problem := "":',
        ("tests/unit/packages/registry/test_freshness.py",),
    ),
    "unsigned_offers_are_taken_from_any_host": Edit(
        "remote/remotes.py",
        "    if remote.is_unsigned and not (remote.is_local or parts.hostname in LOOPBACK):\n",
        "    if False:\n",
        ("tests/unit/remote/test_remotes.py", REMOTES),
    ),
    "a_field_of_the_trust_file_that_is_not_known_is_passed_over": Edit(
        "cache/schema.py",
        "        elif others is False:\n",
        "        elif False:\n",
        ("tests/unit/remote/trust", REMOTES),
    ),
    "a_key_file_that_others_read_is_used": Edit(
        "remote/signatures/keys.py",
        "not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:\n",
        "not stat.S_ISREG(status.st_mode):\n",
        ("tests/unit/remote/test_signing.py",),
    ),
    "a_blob_may_hold_any_name": Edit(
        "remote/blobs.py",
        "            problem = path_problem(path) or (",
        "            problem = (",
        ("tests/unit/remote/test_blobs.py",),
    ),
    "an_admitted_library_is_not_compared": Edit(
        "cache/admit.py",
        '        if (sha256 or digest_of(handle)) != record["sha256"]:\n',
        "        if False:\n",
        ("tests/unit/cache",),
    ),
    "a_record_is_not_compared_with_its_key": Edit(
        "cache/admit.py",
        "    if damage := damage_of(record):\n",
        "    if damage := '':\n",
        ("tests/unit/cache",),
    ),
    "an_installed_file_that_changed_is_imported": Edit(
        "packages/load/variants.py",
        "    if not changed_path(choice.folder, part.receipt):\n",
        "    if True:\n",
        ("tests/unit/packages/registry/test_swapped_files.py", "tests/unit/packages"),
    ),
    "a_part_of_a_program_is_not_compared": Edit(
        "src/opforge/programs/load.py",
        '                if file.digest_of(name, copy) != stated["sha256"]:\n',
        '                if file.digest_of(name, copy) != stated["sha256"] and False:\n',
        (PACKAGES,),
    ),
    "a_page_may_hold_any_file": Edit(
        "src/opforge/jits/entries.py",
        "            problem = self._carries_problem(one.entries[key])\n",
        '            problem = ""\n',
        ("tests/unit/jits/test_pages.py",),
    ),
    "a_page_that_was_withdrawn_is_used_where_nothing_is_missing": Edit(
        "src/opforge/jits/remote.py",
        '    take.drop_withdrawn(where.name, f"{JIT.name}:{where.name}", layout)\n',
        "    assert take and layout\n",
        ("tests/unit/jits/test_pages.py",),
    ),
    "an_installed_package_that_was_withdrawn_from_use_is_loaded": Edit(
        "packages/load/search.py",
        "            objection = locked.objection(release) if locked and not locked.allows(release) else release.refusal\n",
        '            objection = locked.objection(release) if locked and not locked.allows(release) else ""\n',
        ("tests/unit/packages/registry/test_publish.py",),
    ),
    "a_branch_in_the_hubs_cache_leads_anywhere": Edit(
        "packages/project/hub_cache.py",
        '    return commit if COMMIT.fullmatch(commit) else ""\n',
        "    return commit\n",
        ("tests/unit/packages/test_hub_cache.py",),
    ),
    "two_builds_of_a_package_share_the_ops_of_one": Edit(
        "packages/load/tree.py",
        "    if not content or other == content:\n",
        "    if True:\n",
        ("tests/unit/packages/test_local_kernels.py",),
    ),
    "a_copy_takes_what_its_key_may_not_sign": Edit(
        "remote/mirror.py",
        "        keys = trust_file.allowed(keys, offer.subject, what)\n",
        "        assert trust_file.allowed\n",
        ("tests/unit/remote/test_hostile_mirror.py",),
    ),
    # Lost data, and builds that get in each other's way.
    "a_lock_is_nobodys": Edit(
        "cache/filesystem/lock.py",
        "        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        is_free = os.fstat(",
        "        is_free = os.fstat(",
        ("tests/unit/cache/filesystem/test_lock.py", FAULTS),
    ),
    "files_are_written_in_place": Edit(
        "src/opforge/foundation/files.py",
        "    temporary = temp_path(path)\n    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)\n",
        "    temporary = path\n    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)\n",
        ("tests/unit/cache/filesystem/test_files.py", "tests/unit/cache"),
    ),
    "a_pinned_entry_is_evicted": Edit(
        "cache/maintenance/gc.py",
        "        if abs(idle) < GRACE_SECONDS or entry.key in kept:",
        "        if abs(idle) < GRACE_SECONDS:",
        ("tests/unit/cache/maintenance", "tests/unit/cli"),
    ),
    "an_entry_that_was_just_published_is_evicted": Edit(
        "cache/maintenance/gc.py",
        "        if abs(idle) < GRACE_SECONDS or entry.key in kept:",
        "        if entry.key in kept:",
        ("tests/unit/cache/maintenance",),
    ),
    "a_store_may_hold_links": Edit(
        TRUST, "    if not links:\n        return None\n", "    return None\n", ("tests/unit/cache", FAULTS)
    ),
    "a_folder_with_other_files_becomes_a_store": Edit(
        "cache/current_store.py",
        "    if others := _other_names(root):\n        advice",
        "    if False:\n        advice",
        ("tests/unit/cache/store/test_current_store.py", FAULTS),
    ),
    "the_compilers_of_a_killed_builder_live_on": Edit(
        "builders/run/supervisor.py",
        "                os.kill(pid, signal.SIGKILL)\n",
        "                pass\n",
        (FAULTS,),
    ),
    "a_version_is_published_twice_with_other_files": Edit(
        "packages/registry/publish.py",
        "    if release.tree_of(stated.variants) == {part.label: part.digest for part in packed}:\n",
        "    if True:\n",
        ("tests/unit/packages/registry",),
    ),
    "an_entry_is_published_before_it_is_on_the_disk": Edit(
        "cache/staging.py",
        "    for name in os.listdir(finished) if synced else ():\n",
        "    for name in ():\n",
        ("tests/unit/cache/store/test_staging.py",),
    ),
    "a_release_that_the_index_has_lost_is_collected": Edit(
        "remote/gc.py",
        "        needs.names.update(_released(store))\n",
        "        pass\n",
        ("tests/unit/packages/registry/test_cleaning.py",),
    ),
    "a_copy_replaces_a_version_that_was_published_meanwhile": Edit(
        "remote/mirror.py",
        "            and (label not in own or own[label].digest == digest)\n",
        "",
        ("tests/unit/packages/registry/test_mirror.py",),
    ),
}
