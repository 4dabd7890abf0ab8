"""What a command shows, without a terminal."""

from rich.console import Console, RenderableType


def lines(what: RenderableType) -> list[str]:
    """As a terminal of any width shows it, without colours."""
    console = Console(width=10_000, markup=False, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]
