"""Packages that need others: which releases are chosen together, and what is said if none agree."""

from __future__ import annotations

import pytest
from support.remote.withdrawing import withdraw_release

from opforge.errors import KernelDependencyError
from opforge.packages.choose import environment
from opforge.packages.form import version
from opforge.packages.registry import dependencies, selection


class TestDependencies:
    def resolved(self, registry, *texts):
        requirements = [selection.parse_requirement(text) for text in texts]
        choices = dependencies.resolve(requirements, registry.sources())
        return {choice.verified.release.name: str(choice.verified.release.version) for choice in choices}

    def test_what_is_needed_comes_too_the_newest_that_fits(self, registry):
        for number in ("1", "1.5", "2"):
            registry.publish("acme/base", number, text=f"V = '{number}'\n")
        registry.publish("acme/top", "1", depends={"acme/base": "<2"})
        assert self.resolved(registry, "acme/top") == {"acme/top": "1", "acme/base": "1.5"}

    def test_an_older_release_is_taken_if_the_newest_cannot_be_used_with_the_others(self, registry):
        for number in ("1", "2"):
            registry.publish("acme/base", number, text=f"V = {number}\n")
        registry.publish("acme/left", "1", depends={"acme/base": "1"})
        registry.publish("acme/left", "2", depends={"acme/base": "2"})
        registry.publish("acme/right", "1", depends={"acme/base": "1"})
        expected = {"acme/left": "1", "acme/right": "1", "acme/base": "1"}
        assert self.resolved(registry, "acme/left", "acme/right") == expected

    @pytest.mark.parametrize("order", [("acme/aa", "acme/zz"), ("acme/zz", "acme/aa")])
    def test_an_older_release_that_fits_all_is_found_behind_many_newer_ones(self, registry, monkeypatch, order):
        monkeypatch.setattr(selection, "MAX_TRIED", 3)
        for number in range(1, 7):
            registry.publish("acme/base", str(number), text=f"V = {number}\n")
        registry.publish("acme/aa", "1", depends={"acme/base": ">=1"})
        registry.publish("acme/zz", "1", depends={"acme/base": "<2"})
        assert self.resolved(registry, *order)["acme/base"] == "1"

    def test_a_release_is_found_behind_many_that_cannot_be_used_with_the_others(self, registry, monkeypatch):
        monkeypatch.setattr(selection, "MAX_TRIED", 2)
        registry.publish("acme/base", "1")
        for number in range(1, 7):
            registry.publish("acme/left", str(number), depends={"acme/base": "1" if number == 1 else "7"})
        registry.publish("acme/right", "1", depends={"acme/left": ">=1", "acme/base": "1"})
        assert self.resolved(registry, "acme/right")["acme/left"] == "1"

    def test_what_one_range_did_not_show_is_said(self, registry, monkeypatch):
        monkeypatch.setattr(selection, "MAX_TRIED", 2)
        for number in range(1, 4):
            registry.publish("acme/base", str(number), text=f"V = {number}\n")
        among = registry.sources()
        seen = [*selection.fitting("acme/base", version.ANY, among, environment.here, False)]
        assert seen[-1].reason.endswith(
            "of acme/base any the 2 newest releases were looked at: name an older version, if one may fit"
        )

    def test_a_conflict_says_who_needs_what(self, registry):
        for number in ("1", "2"):
            registry.publish("acme/base", number, text=f"V = {number}\n")
        registry.publish("acme/left", "1", depends={"acme/base": "1"})
        registry.publish("acme/right", "1", depends={"acme/base": "2"})
        with pytest.raises(KernelDependencyError) as error:
            self.resolved(registry, "acme/left", "acme/right")
        assert "acme/left 1 needs acme/base 1" in str(error.value)
        assert "acme/right 1 needs acme/base 2" in str(error.value)

    def test_a_dependency_that_is_missing_is_named(self, registry):
        registry.publish("acme/top", "1", depends={"acme/gone": "1"})
        with pytest.raises(KernelDependencyError) as error:
            self.resolved(registry, "acme/top")
        assert "acme/top 1 needs acme/gone 1" in str(error.value) and "it has no package acme/gone" in str(error.value)

    def test_a_dependency_that_is_withdrawn_is_named_with_the_reason(self, registry):
        registry.publish("acme/base", "1")

        withdraw_release(registry.store, "acme/base@1", "crashes")
        registry.publish("acme/top", "1", depends={"acme/base": "1"})
        with pytest.raises(KernelDependencyError, match=r"acme/base 1 was withdrawn: crashes"):
            self.resolved(registry, "acme/top")

    def test_a_circle_is_named_in_its_order(self, registry):
        registry.publish("acme/aa", "1", depends={"acme/bb": "1"})
        registry.publish("acme/bb", "1", depends={"acme/cc": "1"})
        registry.publish("acme/cc", "1", depends={"acme/aa": "1"})
        with pytest.raises(KernelDependencyError, match="acme/aa needs acme/bb needs acme/cc needs acme/aa"):
            self.resolved(registry, "acme/aa")
