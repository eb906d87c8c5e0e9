"""Do other servers share the checkpoint folder? One server leaves a mark there, and the others look
for it."""

import os

from gpq_agent.node.doctor.errand_process import Fields, Place, tell

MARK = ".gpq-doctor-"


# -- is the folder of the checkpoints one that others have too? ------------------------------------


def mark(place: Place, fields: Fields, pipe: int) -> None:
    """Leave a mark."""
    os.close(os.open(_mark(place, str(fields["token"])), os.O_WRONLY | os.O_CREAT, 0o600))
    tell(pipe, {})


def seen(place: Place, fields: Fields, pipe: int) -> None:
    """Report which marks are there. Read the folder again, because a network file system may
    remember that there was none."""
    names = set(os.listdir(place.checkpoints))
    tell(pipe, {"seen": [token for token in fields["tokens"] if MARK + str(token) in names]})


def unmark(place: Place, fields: Fields, pipe: int) -> None:
    """Remove the mark."""
    os.unlink(_mark(place, str(fields["token"])))
    tell(pipe, {})


def _mark(place: Place, token: str) -> str:
    if not token.isalnum():
        raise ValueError("token")
    return os.path.join(place.checkpoints, MARK + token)
