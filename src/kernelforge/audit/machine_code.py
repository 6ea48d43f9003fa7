"""Instructions of x86-64 machine code that no kernel needs: system calls, clocks, random numbers.

A system call written into the code needs no symbol, so a list of symbols does not show it. This is a linear sweep with
a decoder of instruction lengths: what a compiler writes is found, what is hidden in the middle of another instruction
is not. Like all static evidence it is a tripwire; the judge's other checks do not rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator

_PREFIXES = frozenset((0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0xF0, 0x67))
_NO_MODRM = frozenset((
    *range(0x50, 0x60), *range(0x6C, 0x70), *range(0x90, 0xA0), *range(0xA4, 0xA8), *range(0xAA, 0xB0),
    0xC3, 0xC9, *range(0xCB, 0xCD), 0xCE, 0xCF, 0xD6, 0xD7, *range(0xEC, 0xF0), 0xF1, 0xF4, 0xF5, *range(0xF8, 0xFE),
))  # fmt: skip
_BYTE = frozenset((
    0x6A, *range(0x70, 0x80), 0xA8, *range(0xB0, 0xB8), 0xCD, 0xD4, 0xD5, *range(0xE0, 0xE8), 0xEB,
))  # fmt: skip
_WORD_OR_MORE = frozenset((0x68, 0xA9))
_MODRM_BYTE = frozenset((0x6B, 0x80, 0x82, 0x83, 0xC0, 0xC1, 0xC6))
_MODRM_WORD_OR_MORE = frozenset((0x69, 0x81, 0xC7))
_TWO_NO_MODRM = frozenset((
    *range(0x05, 0x0A), 0x0B, 0x0E, *range(0x30, 0x38), 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0),
))  # fmt: skip
_TWO_BYTE = frozenset((*range(0x70, 0x74), 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))
_TWO_NAMES = {0x05: "syscall", 0x34: "sysenter", 0x31: "rdtsc"}


def forbidden_instructions(code: bytes) -> Iterator[str]:
    """The names of such instructions in a stretch of code, in order, with repetition.

    Never raises: bytes that decode to nothing are stepped over one by one.
    """
    at = 0
    while at < len(code):
        try:
            name, length = _decode(code, at)
        except IndexError:
            return
        if name:
            yield name
        at += length


def _decode(code: bytes, at: int) -> tuple[str, int]:
    """Name (or "") and length of the instruction at an offset.

    Raises:
        IndexError: the code ends within it.
    """
    start, operand_16, wide = at, False, False
    while code[at] in _PREFIXES:
        operand_16 |= code[at] == 0x66
        at += 1
        if at - start > 14:
            return "", 1
    if code[at] & 0xF0 == 0x40:
        wide = bool(code[at] & 8)
        at += 1
    opcode = code[at]
    if opcode in (0xC4, 0xC5, 0x62):
        return "", _vector(code, at) - start
    if opcode == 0x0F:
        name, end = _two_bytes(code, at + 1)
        return name, end - start
    return ("int 0x80" if opcode == 0xCD and code[at + 1] == 0x80 else ""), _one_byte(
        code, at, 2 if operand_16 and not wide else 4, wide
    ) - start


def _one_byte(code: bytes, at: int, word: int, wide: bool) -> int:
    """Where an instruction with a one-byte opcode ends."""
    opcode, at = code[at], at + 1
    if opcode < 0x40:
        low = opcode & 7
        return _modrm(code, at) if low < 4 else at + 1 if low == 4 else at + word if low == 5 else at
    if opcode in _NO_MODRM:
        return at
    if opcode in _BYTE:
        return at + 1
    if opcode in _WORD_OR_MORE:
        return at + word
    if 0xB8 <= opcode <= 0xBF:
        return at + (8 if wide else word)
    if opcode in (0xE8, 0xE9):
        return at + 4
    if 0xA0 <= opcode <= 0xA3:
        return at + 8
    if opcode in (0xC2, 0xCA):
        return at + 2
    if opcode == 0xC8:
        return at + 3
    end = _modrm(code, at)
    if opcode in _MODRM_BYTE or (opcode == 0xF6 and code[at] & 0x30 == 0):
        return end + 1
    if opcode in _MODRM_WORD_OR_MORE or (opcode == 0xF7 and code[at] & 0x30 == 0):
        return end + word
    return end


def _two_bytes(code: bytes, at: int) -> tuple[str, int]:
    """Name and end of an instruction after its escape byte 0x0f."""
    opcode, at = code[at], at + 1
    if opcode in _TWO_NO_MODRM:
        return _TWO_NAMES.get(opcode, ""), at
    if 0x80 <= opcode <= 0x8F:
        return "", at + 4
    if opcode == 0x38:
        return "", _modrm(code, at + 1)
    if opcode == 0x3A:
        return "", _modrm(code, at + 1) + 1
    name = ""
    if opcode == 0x01 and code[at] == 0xF9:
        name = "rdtscp"
    elif opcode == 0xC7 and code[at] >= 0xF0:
        name = "rdrand"
    return name, _modrm(code, at) + (opcode in _TWO_BYTE)


def _vector(code: bytes, at: int) -> int:
    """Where an instruction with a VEX or EVEX prefix ends."""
    first = code[at]
    if first == 0xC5:
        kind, at = 1, at + 2
    elif first == 0xC4:
        kind, at = code[at + 1] & 31, at + 3
    else:
        kind, at = code[at + 1] & 7, at + 4
    opcode = code[at]
    if kind == 1 and opcode == 0x77:
        return at + 1
    return _modrm(code, at + 1) + (kind == 3 or (kind == 1 and opcode in _TWO_BYTE))


def _modrm(code: bytes, at: int) -> int:
    """Where a ModRM byte with its SIB byte and displacement ends."""
    mode, register = code[at] >> 6, code[at] & 7
    at += 1
    if mode == 3:
        return at
    if register == 4:
        register = code[at] & 7
        at += 1
    if mode == 0:
        return at + 4 if register == 5 else at
    return at + (1 if mode == 1 else 4)
