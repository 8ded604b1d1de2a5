"""The file of `opforge tune --shapes`: the sizes to time, by dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opforge.builders.lookup.tuning_results import DTYPES
from opforge.cache import schema
from opforge.cache.schema import FormatError, items, table, whole
from opforge.errors import TuningError
from opforge.foundation.files import read_file

MOST_SIZES, MAX_BYTES = 64, 1 << 20
EXAMPLE = '{"float32": [4096, 1000000], "bfloat16": [65536]}'
SHAPES = table(items(whole(1, 1 << 40), MOST_SIZES, 1), schema.choice(*DTYPES), len(DTYPES))


def read(path: str) -> Mapping[str, Sequence[int]]:
    """Returns the sizes by dtype, each once and in ascending order. Raises TuningError for what is no such file."""
    try:
        value: Mapping[str, Sequence[int]] = schema.parse(read_file(path, MAX_BYTES), SHAPES, MAX_BYTES)
    except OSError as error:
        raise TuningError(path, f"it cannot be read ({error.strerror})", "Name a file that you may read") from error
    except (FormatError, ValueError) as error:
        raise TuningError(path, str(error), f"Write sizes by dtype, such as {EXAMPLE}") from error
    if not value:
        raise TuningError(path, "it names no dtype", f"Write sizes by dtype, such as {EXAMPLE}")
    return {dtype: sorted({*sizes}) for dtype, sizes in value.items()}
