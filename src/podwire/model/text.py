"""Text from outside, for people. Pure."""


def printable(text: str) -> str:
    """As it is, but whatever is no visible character or plain space is escaped, such as `\\n`, `\\x1b` or `\\u202e`:
    one line stays one line, and no terminal obeys it. A byte that is not UTF-8 (a surrogate, PEP 383) is `\\xff`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(letter)[1:-1]
