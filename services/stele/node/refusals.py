"""What a client is told when its request was not served: refused, or, for a write, not known."""


class Refused(Exception):
    """A request that was not served: an HTTP status, a code, a sentence, what to do, and facts.

    A refused write was not done, anywhere, nor will be; only ``OutcomeUnknown`` says nothing about that.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str, details: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.details = details or {}


class OutcomeUnknown(Refused):
    """A write that may be at some replicas and is not known to be at enough."""

    def __init__(self, why: Refused) -> None:
        super().__init__(
            503,
            "outcome_unknown",
            f"The write may have taken effect, or may yet: {why.message}",
            "Read the key to learn it, or write again; nobody else can tell.",
            why.details,
        )
