"""What can go wrong, as the command line's exit codes tell it apart."""


class XstageError(RuntimeError):
    """The base of all errors of xstage; `status` is the C ABI's number."""

    status = 1


class BadInput(XstageError, ValueError):
    """A call that cannot be right: the message says what to change."""

    status = 2


class Unsupported(XstageError):
    """This machine or this build cannot do it; the message says what is missing."""

    status = 3


class EnvironmentBroken(XstageError):
    """The driver or the group is broken; build a new group to go on."""

    status = 4


class TimedOut(XstageError, TimeoutError):
    """A bounded wait ran out; the message names the rank that is missing."""

    status = 124


class Closed(BadInput):
    """Used after close()."""


BY_STATUS = {kind.status: kind for kind in (BadInput, Unsupported, EnvironmentBroken, TimedOut)}
