"""The exceptions of parley. Each has the facts of the error as attributes, so that a program need not read its text."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any


class Failure(Exception):
    """A call, a declaration or a job has failed.

    `code` is one of docs/errors.md, such as `peer_failed`. The other attributes are None where they are not known: `op` is the title of the
    operation (`activations 0->1`), `rank` met the error, `peer` made it fail or was waited for, `invocation` is the number of the call,
    `unmet` is what the call waited for, and `began_with_rank` is the rank with whose end everything began.
    """

    code: str = "exception"
    op: str | None = None
    rank: int | None = None
    role: str | None = None
    peer: int | None = None
    tag: int | None = None
    invocation: int | None = None
    begun: bool = True
    unmet: str | None = None
    config: str | None = None
    done_bytes: int | None = None
    whole_bytes: int | None = None
    own_bytes: int | None = None
    began_with_rank: int | None = None
    began_with: str | None = None


class Timeout(Failure, TimeoutError):
    """A deadline passed before the call ended."""

    code = "timeout"


class BadArgument(Failure, ValueError):
    """A call or a declaration cannot work as it was made."""

    code = "bad_argument"


class PeerFailed(Failure, ConnectionError):
    """Another rank died or cannot be reached; `peer` says which."""

    code = "peer_failed"


_of_code: dict[str, type[Failure]] = {"timeout": Timeout, "bad_argument": BadArgument, "peer_failed": PeerFailed}


def failure(code: str, text: str, facts: dict[str, Any]) -> Failure:
    """Makes the exception of an error; the extension calls this."""
    made = _of_code.get(code, Failure)(text)
    made.code = code
    for name, value in facts.items():
        setattr(made, name, value.strip() if isinstance(value, str) else value)
    return made


def place_of(trace: TracebackType | None) -> str:
    """The last line of the program that an exception came through, ` (program.py:12, in send)`; the extension calls this, too."""
    of_parley = os.path.dirname(__file__)
    last = trace
    while trace is not None:
        if os.path.dirname(trace.tb_frame.f_code.co_filename) != of_parley:
            last = trace
        trace = trace.tb_next
    if last is None:
        return ""
    code = last.tb_frame.f_code
    return f" ({os.path.basename(code.co_filename)}:{last.tb_lineno}, in {code.co_name})"
