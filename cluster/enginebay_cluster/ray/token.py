"""The cluster's token: who has it may do anything on its machines, who has not, nothing."""

import os
import stat
from pathlib import Path

from enginebay_cluster.contract import ClusterError


def token_environment(path: str) -> dict[str, str]:
    """What has Ray show this token, and ask for it.

    `ClusterError` if the file is missing, empty, or other users may read it.
    """
    try:
        mode, text = Path(path).stat().st_mode, Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise ClusterError(
            f"the cluster's token cannot be read from {path}: {reason}; `enginebay cluster up` "
            "writes it on the first machine, `enginebay cluster join HEAD:PORT` on others"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ClusterError(
            f"{path} is readable by other users of this machine, and whoever has the cluster's "
            f"token controls its machines; run: chmod 600 {path}"
        )
    if not text.strip():
        raise ClusterError(f"{path} is empty; copy the cluster's token from its first machine")
    # Ray takes a token from RAY_AUTH_TOKEN first, if that is set and not empty.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": path}


def use_token(path: str) -> None:
    """Have Ray in this process show this token; to be called before it is imported.

    `ClusterError` as in `token_environment`.
    """
    os.environ.update(token_environment(path))
