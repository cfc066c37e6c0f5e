"""Where the learner hosts of one run meet: at the chief's address, over ZeroMQ, encrypted with the token's keys.

The chief holds a ROUTER, every other host a DEALER. Messages are one part, a JSON object (`net.frames.encode_control`):

| kind | from | what |
|---|---|---|
| introduce | host | `index`, `introduction`; repeated until every host is known |
| wait | chief | `missing`: the hosts that have not come |
| host | chief | `index`, `introduction` of one that has come; of its configuration the values that may differ |
| beat | host | `envs` it serves, `spec` it proposes or null |
| beat | chief | `loads`: environments by host, `lost`: a sentence or "" |
| spec, told | chief | `value`: the specification agreed on, and what the chief has last told |
| ended | both | `reason`, `usage`: whether it is the user's to mend |

Everything is repeated with the heartbeats, so that a connection that breaks and comes back loses nothing. ZeroMQ
belongs to one thread, the meeting's own; the others read and change what it keeps under a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seedcli.cluster.introductions import Introduction
from seedcli.cluster.meeting_base import MAX_HOSTS, Meeting, MeetingCancelled
from seedcli.cluster.meeting_chief import Chief, Door
from seedcli.cluster.meeting_member import Member
from seedcli.errors import ProtocolError, UsageError
from seedcli.net.security.keys import Security

__all__ = ["Door", "Introduction", "Meeting", "MeetingCancelled", "meet"]

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0


def meet(
    hosts: Sequence[str],
    index: int,
    introduction: Introduction,
    *,
    security: Security | None,
    timeout: float,
    stopped: Callable[[], bool] = lambda: False,
    beat_seconds: float = BEAT_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    door: Door | None = None,
) -> Meeting:
    """Meet the other learner hosts of a run; blocks until all of them are there.

    Args:
        hosts: "host:port" of each, the chief first; only the chief's port is listened at, by the meeting.
        index: which of them this is.
        introduction: of this host.
        security: what connections are protected with; None: nothing.
        timeout: seconds to wait for the others.
        stopped: asked ten times a second whether to give up.
        beat_seconds, silence_seconds: between heartbeats, and after which a host that was not heard is lost.
        door: the chief's: it is told which connections are those of hosts.

    Raises:
        UsageError: a host did not come; hosts disagree in their configuration, version or index; the chief's address
            cannot be listened at.
        UnreachableError: nobody answers at the chief's address, or the chief has ended.
        DistrustedError: the chief has another token.
        MeetingCancelled: `stopped` said so.
    """
    if len(hosts) > MAX_HOSTS:
        raise UsageError(f"topology.hosts names {len(hosts)} hosts, more than the limit of {MAX_HOSTS}: leave some out")
    paces = {"beat_seconds": beat_seconds, "silence_seconds": silence_seconds}
    try:
        meeting: Meeting
        if index == 0:
            meeting = Chief(hosts, index, introduction, security, door=door, **paces)
        else:
            meeting = Member(hosts, index, introduction, security, **paces)
    except ProtocolError as error:
        raise UsageError(f"this host cannot be introduced to the other learner hosts: {error}") from error
    try:
        meeting.gather(timeout, stopped)
    except BaseException as error:
        meeting.end(str(error) or type(error).__name__, usage=isinstance(error, UsageError))
        raise
    return meeting
