"""Builds of loads that are observed: they are published as always."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from support.observer import library, reader
from support.observer.build import ObservedBuild, listed_files


def observed(execute: Callable[..., Any], on_build: Callable[[ObservedBuild], None]) -> Callable[..., Any]:
    """Returns `executor.execute`, for builds that are observed: `on_build` gets each of them."""

    def run(job: Any, folder: str, disk: Any) -> Any:
        notes = os.path.join(folder, "notes")
        os.mkdir(notes, 0o700)
        with library.observing(library.library(), notes):
            result = execute(job, folder, disk)
        observation = reader.read_notes(notes)
        gaps, listed = tuple(observation.gaps()), listed_files(folder)
        on_build(ObservedBuild(job, result.inputs, folder, observation.steps(), gaps, listed))
        return result

    return run
