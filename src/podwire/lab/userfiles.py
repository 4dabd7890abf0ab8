"""The user's directory of manifests, read whole.

Invariants: a directory is right or wrong as a whole: one mistake in one file, and nothing of it counts.
"""

from functools import partial
from pathlib import Path

from podwire.lab.expand import Manifest, ManifestsError
from podwire.sources.documents import Broken, Document, read_documents
from podwire.sources.manifests import SUFFIXES, TEMPORARY


def read_directory(directory: Path) -> list[Manifest]:
    """Raises ManifestsError."""
    mistakes: list[str] = []
    found: list[Manifest] = []
    for file in files_in(directory):
        try:
            text = file.read_bytes()
            if not text:  # `>` empties a file before the first byte comes
                mistakes.append(f"{file}: is empty; to remove its objects, remove the file")
            found += [Manifest(it.data, partial(_where, it)) for it in read_documents(str(file), text)]
        except Broken as error:
            mistakes.append(str(error))
        except OSError as error:
            mistakes.append(f"{file}: {error.strerror or error}")
    if mistakes:
        raise ManifestsError("\n".join(mistakes))
    return found


def files_in(directory: Path) -> list[Path]:
    """Below it too, but for what is hidden. Raises ManifestsError where there is no such directory."""
    if not directory.is_dir():
        raise ManifestsError(f"{directory}: expected a directory with manifests ({', '.join(SUFFIXES)})")
    return sorted(
        file
        for file in directory.rglob("*")
        if file.suffix in SUFFIXES
        and file.is_file()
        and not any(part.startswith(TEMPORARY) for part in file.relative_to(directory).parts)
    )


def signature(directory: Path) -> list[tuple[str, int, int, int]]:
    """Another one, another content: of each file its path, time of change in ns, size and inode."""
    try:
        stats = [(str(file), file.stat()) for file in files_in(directory)]
    except (ManifestsError, FileNotFoundError):
        return []
    return [(path, it.st_mtime_ns, it.st_size, it.st_ino) for path, it in stats]


def _where(document: Document, field: str) -> str:
    return str(document.place._replace(line=document.line(field)))
