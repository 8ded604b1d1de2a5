"""Replacing an object in the imported modules that hold it."""

from __future__ import annotations

import sys
import types

import pytest
from support import sample_ops

from opforge.compat.rebinding import Replacement, rebind, restore


@pytest.fixture
def module(monkeypatch):
    """A function that creates an imported module with the given names, until the end of the test."""

    def make(**names):
        created = types.ModuleType(sample_ops.unique_name("rebound"))
        vars(created).update(names)
        monkeypatch.setitem(sys.modules, created.__name__, created)
        return created

    return make


def test_every_module_that_holds_the_object_gets_the_new_one_under_any_name(module):
    old, new = object(), object()
    same_name, other_name, unrelated = module(load=old), module(jit=old, other=1), module(load=object())
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert (same_name.load, other_name.jit, other_name.other) == (new, new, 1)
    assert unrelated.load is not new


def test_an_object_with_several_replacements_is_replaced_by_name_only(module):
    old, adam, lion = object(), object(), object()
    holder = module(AdamBuilder=old, LionBuilder=old, Alias=old)
    rebind([Replacement("AdamBuilder", old, adam), Replacement("LionBuilder", old, lion)], keeps=lambda name: False)
    assert (holder.AdamBuilder, holder.LionBuilder, holder.Alias) == (adam, lion, old)


def test_a_module_that_keeps_its_objects_is_unchanged(module):
    old = object()
    keeping, other = module(load=old), module(load=old)
    rebind([Replacement("load", old, object())], keeps=lambda name: name == keeping.__name__)
    assert keeping.load is old
    assert other.load is not old


def test_restore_undoes_the_replacement(module):
    old = object()
    holder = module(load=old, jit=old)
    rebound = rebind([Replacement("load", old, object())], keeps=lambda name: False)
    assert old not in (holder.load, holder.jit)
    restore(rebound)
    assert holder.load is holder.jit is old


def test_an_entry_of_sys_modules_that_is_no_module_is_skipped(module, monkeypatch):
    class Bare:
        __slots__ = ()

    monkeypatch.setitem(sys.modules, sample_ops.unique_name("bare"), Bare())
    old, new = object(), object()
    holder = module(load=old)
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert holder.load is new


def test_a_modules_own_attribute_access_is_not_used(module, monkeypatch):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was accessed")

    monkeypatch.setitem(sys.modules, sample_ops.unique_name("lazy"), Lazy("lazy"))
    old, new = object(), object()
    holder = module(load=old)
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert holder.load is new
