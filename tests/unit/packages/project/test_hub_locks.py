"""The lock files of the hub: both formats are read, and nothing else."""

from __future__ import annotations

import json

import pytest

from opforge.errors import KernelFormatError
from opforge.packages.project import hub_locks

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class TestHubLocks:
    OLD = [{"repo_id": "Org/Relu", "sha": COMMIT, "variants": {"torch-cuda": {"hash": f"sha256-{'a' * 64}"}}}]
    NEW = [{"dependency": {"repo-id": "org/relu", "version": 2}, "lock": {"commit": COMMIT}}]

    def test_both_formats_are_read(self):
        (old,) = hub_locks.parse(json.dumps(self.OLD).encode(), "kernels.lock")
        assert (old.repository, old.commit, old.hashes) == ("Org/Relu", COMMIT, {"torch-cuda": f"sha256-{'a' * 64}"})
        (new,) = hub_locks.parse(json.dumps(self.NEW).encode(), "kernels.lock")
        assert (new.repository, str(new.numbers), new.revision) == ("org/relu", "2", "")
        nix = [
            {
                "dependency": {"repo-id": "o/r", "revision": "main"},
                "lock": {"commit": COMMIT, "hash": f"sha256-{'a' * 43}="},
            }
        ]
        assert hub_locks.parse(json.dumps(nix).encode(), "kernels.lock")[0].revision == "main"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({}, "it is an object of 0 fields: expected a list of 0 to 10000 items"),
            ([3], "it is 3: expected an object"),
            ([*NEW, *NEW], "org/relu 2 is in it twice"),
            ([{**NEW[0], "more": 1}], "'more' is not a field that is read"),
            ([{"dependency": {"repo-id": "org/relu"}, "lock": {"commit": COMMIT}}], "not exactly one of 'version' and"),
            (
                [{"dependency": {"repo-id": "../relu", "version": 1}, "lock": {"commit": COMMIT}}],
                "expected a repository such as acme/relu",
            ),
            (
                [{"dependency": {"repo-id": "org/relu", "version": 1}, "lock": {"commit": "12"}}],
                "not 40 or 64 hex digits",
            ),
            (
                [{**OLD[0], "variants": {"x": {"hash": "md5-1"}}}],
                "git_lfs_concat and sha256- with 64 hex",
            ),
        ],
    )
    def test_another_file_is_refused(self, value, text):
        with pytest.raises(KernelFormatError) as error:
            hub_locks.parse(json.dumps(value).encode(), "kernels.lock")
        assert text in str(error.value)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                f'[{{"repo_id": "a/b", "sha": "{COMMIT}", "sha": "{COMMIT[::-1]}", "variants": {{}}}}]',
                "'sha' is in it twice",
            ),
            (r'[{"repo_id": "a/b", "sha": "\ud800", "variants": {}}]', "surrogates not allowed"),
            ("[" * 100_000, "it is nested too deeply"),
        ],
    )
    def test_what_readers_of_json_read_differently_is_refused(self, text, reason):
        with pytest.raises(KernelFormatError, match=reason):
            hub_locks.parse(text.encode(), "kernels.lock")
