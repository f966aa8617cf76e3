"""
Errors in a user's file, in one line.

The readers of traces, speeds and clusters raise them; the command prints them and exits.
"""


class BadInput(ValueError):
    """
    A file or an option cannot be used, and what to do about it.

    ``str()`` is one line for any content of the file: ``FILE:LINE: FIELD: what is wrong; remedy``.
    """

    def __init__(
        self, file: object, message: str, *, line: int | None = None, field: str = "", remedy: str
    ) -> None:
        super().__init__(file, message, line, field, remedy)
        self.file = str(file)
        self.line = line
        self.field = field
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        text = f"{where}: {field}{self.message}; {self.remedy}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
