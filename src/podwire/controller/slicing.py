"""Long work cut into slices, so that everybody else gets a turn in between. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def slices(items: Iterable[Item], weight: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """In order; each as long as its weight stays within `most`, but an item alone may weigh more."""
    part: list[Item] = []
    size = 0
    for item in items:
        heavy = weight(item)
        if part and size + heavy > most:
            yield part
            part, size = [], 0
        part.append(item)
        size += heavy
    if part:
        yield part
