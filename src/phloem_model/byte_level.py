"""The alphabet in which byte-level BPE writes bytes."""


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each byte value.

    Printable Latin-1 characters stand for themselves; the other bytes take the code points from 256 on, in order.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    code_points = {byte: byte for byte in own} | {byte: 256 + rank for rank, byte in enumerate(others)}
    return [chr(code_points[byte]) for byte in range(256)]
