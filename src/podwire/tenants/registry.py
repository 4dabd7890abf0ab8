"""Which providers there are, by name: those that this program has registered, and those that packages ship.

Invariants: a name has one factory. A package's code is imported only where its provider is asked for; one that can't be
imported is an error that names the package, and costs nobody else. An error says which names there are.
"""

import threading
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TextIO

from podwire.tenants.provider import Provider

GROUP = "podwire.network_providers"
"""Of entry points (Python packaging, "Entry points specification")."""
Factory = Callable[[TextIO | None], Provider]
"""Makes a provider from its configuration, None: there is none. May raise whatever says why not."""


class RegistryError(Exception):
    """One line for whoever chooses a provider."""


class Registry:
    """`shipped`: the entry points of installed packages."""

    def __init__(self, shipped: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP)) -> None:
        self._shipped, self._lock = shipped, threading.RLock()
        self._registered: dict[str, Factory] = {}

    def register(self, name: str, factory: Factory) -> None:
        """Raises RegistryError where the name is taken, or none."""
        if not name or name != name.strip():
            raise RegistryError(f"expected a network provider's name, not {name!r}")
        with self._lock:
            if name in self._registered or any(it.name == name for it in self._shipped()):
                raise RegistryError(f"network provider {name!r} is registered already; {self._known()}")
            self._registered[name] = factory

    def names(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted({*self._registered, *(it.name for it in self._shipped())}))

    def get(self, name: str, config: TextIO | None = None) -> Provider | None:
        """None: there is no such. Raises RegistryError where its factory fails."""
        factory = self._factory(name)
        return _made(name, factory, config) if factory is not None else None

    def init(self, name: str, config: TextIO | None = None) -> Provider:
        """Raises RegistryError where none is named, or an unknown one, or where its factory fails."""
        if not name:
            raise RegistryError(f"no network provider is named; {self._known()}")
        found = self.get(name, config)
        if found is None:
            raise RegistryError(f"unknown network provider {name!r}; {self._known()}")
        return found

    def _factory(self, name: str) -> Factory | None:
        with self._lock:
            if name in self._registered:
                return self._registered[name]
            shipped = [it for it in self._shipped() if it.name == name]
        if len(shipped) > 1:
            whose = " and ".join(sorted(map(_package, shipped)))
            raise RegistryError(f"network provider {name!r} is shipped by {whose}: remove all but one")
        return _loaded(shipped[0]) if shipped else None

    def _known(self) -> str:
        return f"registered: {', '.join(self.names()) or 'none'}"


def _loaded(it: EntryPoint) -> Factory:
    try:
        factory = it.load()
    except Exception as error:  # a package's own code
        raise RegistryError(
            f"network provider {it.name!r} of {_package(it)} can't be loaded: {_line(error)}"
        ) from error
    if not callable(factory):
        raise RegistryError(f"network provider {it.name!r} of {_package(it)}: expected a factory, not {factory!r}")
    return factory  # type: ignore[no-any-return]


def _made(name: str, factory: Factory, config: TextIO | None) -> Provider:
    try:
        return factory(config)
    except Exception as error:  # a provider's own code
        raise RegistryError(f"could not init network provider {name!r}: {_line(error)}") from error


def _package(it: EntryPoint) -> str:
    return f"package {it.dist.name}" if it.dist is not None else f"entry point {it.value}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_registry = Registry()


def register_network_provider(name: str, factory: Factory) -> None:
    """For all of this process. Raises RegistryError."""
    _registry.register(name, factory)


def get_network_provider(name: str, config: TextIO | None = None) -> Provider | None:
    """None: there is no such. Raises RegistryError."""
    return _registry.get(name, config)


def init_network_provider(name: str, config: TextIO | None = None) -> Provider:
    """Raises RegistryError."""
    return _registry.init(name, config)
