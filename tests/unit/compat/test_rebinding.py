"""Putting one object in another's place, in the modules that hold it."""

from __future__ import annotations

import sys
import types

import pytest
from support import sample_ops

from opforge.compat.rebinding import Replacement, rebind, restore


@pytest.fixture
def module(monkeypatch):
    """Makes modules that are imported, to all appearances, and holds them until the test is over."""

    def make(**names):
        made = types.ModuleType(sample_ops.unique_name("rebound"))
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, made.__name__, made)
        return made

    return make


def test_every_module_that_holds_the_object_gets_the_new_one_by_whatever_name(module):
    old, new = object(), object()
    one, other, stranger = module(load=old), module(jit=old, kept=1), module(load=object())
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert (one.load, other.jit, other.kept) == (new, new, 1)
    assert stranger.load is not new


def test_an_object_with_several_names_is_replaced_by_name_and_left_where_the_name_does_not_tell(module):
    old, adam, lion = object(), object(), object()
    holder = module(AdamBuilder=old, LionBuilder=old, Alias=old)
    rebind([Replacement("AdamBuilder", old, adam), Replacement("LionBuilder", old, lion)], keeps=lambda name: False)
    assert (holder.AdamBuilder, holder.LionBuilder, holder.Alias) == (adam, lion, old)


def test_modules_that_are_to_keep_theirs_keep_it(module):
    old = object()
    home, user = module(load=old), module(load=old)
    rebind([Replacement("load", old, object())], keeps=lambda name: name == home.__name__)
    assert home.load is old
    assert user.load is not old


def test_restore_undoes_it(module):
    old = object()
    holder = module(load=old, jit=old)
    done = rebind([Replacement("load", old, object())], keeps=lambda name: False)
    assert old not in (holder.load, holder.jit)
    restore(done)
    assert holder.load is holder.jit is old


def test_what_stands_for_a_module_without_being_one_is_passed_over(module, monkeypatch):
    class Bare:
        __slots__ = ()

    monkeypatch.setitem(sys.modules, sample_ops.unique_name("bare"), Bare())
    old, new = object(), object()
    holder = module(load=old)
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert holder.load is new


def test_no_module_is_asked_for_its_names_by_its_own_attribute_access(module, monkeypatch):
    class Late(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, sample_ops.unique_name("late"), Late("late"))
    old, new = object(), object()
    holder = module(load=old)
    rebind([Replacement("load", old, new)], keeps=lambda name: False)
    assert holder.load is new
