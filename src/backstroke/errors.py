"""Errors of our own."""


class UnsupportedError(NotImplementedError):
    """A contract asks for something that is not built."""
