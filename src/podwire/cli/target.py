"""Which agent a command speaks to, and in which form it answers: the options that all of them share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from podwire.cli.client import REFUSED, Failed
from podwire.config import ADMIN_SOCKET, Config, ConfigError, read_config

STATE_DIR = Path("/var/lib/podwire")

Output = Annotated[
    Literal["table", "json"],
    Parameter(name=["--output", "-o"], help="A table for people, or the admin API's JSON as it came."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Target:
    """
    Parameters
    ----------
    state_dir
        The agent's state directory, where its admin socket lies.
    config
        The agent's configuration file: takes the state directory from there.
    """

    state_dir: Annotated[Path, Parameter(env_var="PODWIRE_STATE_DIR")] = STATE_DIR
    config: Path | None = None

    def socket(self) -> Path:
        """Raises Failed where the configuration is not right."""
        return self.state_dir / ADMIN_SOCKET if self.config is None else read(self.config).admin_socket


HERE = Target()


def read(config: Path) -> Config:
    """Raises Failed."""
    try:
        return read_config(config)
    except ConfigError as error:
        raise Failed(str(error), REFUSED) from None
