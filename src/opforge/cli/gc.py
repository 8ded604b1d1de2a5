"""`opforge gc`: removes what nothing needs, from the cache or from a store."""

from __future__ import annotations

import time

import click

from .guard import Guarded, json_option
from .output import counted, emit_json, size_text
from .remote.stores import is_url, opened
from .removed import dry_run_option, remove, show, summary
from .units import AGE, SIZE
from .verbs import WITHOUT_NAMES


@click.command("gc", cls=Guarded)
@click.argument("url", default="", metavar="[URL]")
@click.option(
    "--max-size",
    type=SIZE,
    help="Evict the least recently used until the cache is this small, such as 2GiB. Default: OPFORGE_CACHE_MAX_SIZE.",
)
@click.option(
    "--max-age",
    type=AGE,
    help="Evict entries that were not used for this long, such as 30d. Default: OPFORGE_CACHE_MAX_AGE.",
)
@click.option(
    "--unused-for", type=AGE, help="In a store: also ops to which nothing was added for this long, such as 90d."
)
@dry_run_option
@json_option
def command(
    url: str, max_size: int | None, max_age: float | None, unused_for: float | None, dry_run: bool, as_json: bool
) -> None:
    """Remove entries over the limits, and files of killed processes, from the cache; with a URL, from that store.

    In the cache, pinned entries stay, and so do entries that were built or used within the last seconds. In a store,
    blobs and statements are removed if nothing names them and they are older than a day.

    \b
    Examples:
      opforge gc --max-size 2GiB --max-age 30d --dry-run
      opforge gc file:///shared/ops --unused-for 90d
    """
    if url:
        if not is_url(url):
            expected = "expected the URL of a store, or nothing for the cache"
            raise click.UsageError(f"{url!r}: {expected}. It takes no names: {WITHOUT_NAMES['gc']}.")
        if max_size is not None or max_age is not None:
            raise click.UsageError("--max-size and --max-age limit the cache: leave out the URL.")
        return _collect(url, unused_for, dry_run, as_json)
    if unused_for is not None:
        raise click.UsageError("--unused-for is for a store: name its URL. For the cache: --max-age.")
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance import gc
    from opforge.foundation import settings
    from opforge.foundation.files import now_in

    layout = own_store().layout
    max_size = settings.cache_max_size() if max_size is None else max_size
    max_age = settings.cache_max_age() if max_age is None else max_age
    removed = remove(list(gc.over_limit(layout, now_in(layout.path()), max_size, max_age)), dry_run)
    return emit_json(summary(removed, dry_run)) if as_json else show(removed, dry_run, 0)


def _collect(url: str, unused_for: float | None, dry_run: bool, as_json: bool) -> None:
    from opforge.remote import gc

    _remote, store = opened(url)
    removed = list((gc.unused if dry_run else gc.collect)(store, time.time(), unused_for))
    if as_json:
        return emit_json({"removed": [item._asdict() for item in removed], "dry_run": dry_run})
    for item in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {item.name}, {size_text(item.size)}: {item.reason}")
    size = size_text(sum(item.size for item in removed))
    return click.echo(f"{counted(len(removed), 'object', 'objects')}, {size}")
