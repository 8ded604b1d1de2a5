"""Completion in shells."""
