"""The one exception that stands for a mistake of the user's: its message is printed as one line, the exit code is 2."""


class UserError(Exception):
    """Something the user can mend. Says in one line what was wrong, where, and what would be right."""
