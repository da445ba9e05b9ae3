"""The exception for user errors: the command line prints its message as one line and exits with code 2."""


class UserError(Exception):
    """An error that the user can fix. The message names, in one line, the key or file, the problem and the solution."""
