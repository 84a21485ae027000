"""The string formats of JSON Schema as automata.

Each is the grammar of its RFC, or a documented part of it: what is let through is always valid.
Narrower than the RFC are ``date`` (no year 0000), ``time`` (leap seconds only at offsets of whole
quarters of an hour), ``hostname`` (no label with hyphens at places
three and four, which punycode needs), ``email`` (32 letters in a local part with dots, 254
characters in all), ``idn-hostname`` and ``idn-email`` (see below), ``uri-template`` (no reserved
operators) and ``regex`` (groups nested at most twice, no back-references).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from sglang_lite.constrained import regex_ast as ast
from sglang_lite.constrained.algebra import combine, union
from sglang_lite.constrained.automaton import Automaton
from sglang_lite.constrained.lengths import bounded
from sglang_lite.constrained.regex import RegexAutomaton, full_match
from sglang_lite.constrained.regex_parser import parse

# -- dates and times: RFC 3339 -------------------------------------------------------------------

_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)"
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_FRACTION = r"(?:\.\d+)?"
_TIME = rf"{_HOUR}:{_MINUTE}:[0-5]\d{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})"

_SECONDS = r"\d+S"
_MINUTES = rf"\d+M(?:{_SECONDS})?"
_CLOCK = rf"T(?:\d+H(?:{_MINUTES})?|{_MINUTES}|{_SECONDS})"
_MONTHS = r"\d+M(?:\d+D)?"
_DURATION = rf"P(?:(?:\d+Y(?:{_MONTHS})?|{_MONTHS}|\d+D)(?:{_CLOCK})?|{_CLOCK}|\d+W)"


@cache
def _leap_second() -> ast.Node:
    """``hh:mm:60`` with an offset such that it is 23:59:60 in UTC.

    Offsets are whole quarters of an hour, as all real ones are: else each minute of the day has
    states of its own.
    """
    digit = [parse(d) for d in "0123456789"]
    two = [(digit[n // 10], digit[n % 10]) for n in range(60)]
    colon, plus, minus = parse(":"), parse(r"\+"), parse("-")
    sixty = (colon, digit[6], digit[0], parse(_FRACTION, "a"))
    zulu = parse("[Zz]")
    hours = []
    for hour in range(24):
        minutes: list[ast.Node] = []
        for minute in (14, 29, 44, 59):
            ahead_hour, ahead_minute = divmod((hour * 60 + minute + 1) % 1440, 60)
            ahead = ast.Seq((plus, *two[ahead_hour], colon, *two[ahead_minute]))
            behind = ast.Seq((minus, *two[23 - hour], colon, *two[59 - minute]))
            utc = (zulu,) if (hour, minute) == (23, 59) else ()
            minutes.append(ast.Seq((*two[minute], *sixty, ast.Alt((ahead, behind, *utc)))))
        hours.append(ast.Seq((*two[hour], colon, ast.Alt(tuple(minutes)))))
    return ast.Alt(tuple(hours))


def _time() -> Automaton:
    return RegexAutomaton(ast.alt((parse(_TIME, "a"), _leap_second())))


def _date_time() -> Automaton:
    time = ast.alt((parse(_TIME, "a"), _leap_second()))
    return RegexAutomaton(ast.seq((parse(rf"{_DATE}[Tt]", "a"), time)))


# -- addresses: RFC 1123, 2673, 4291 -------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16 = r"[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    """Eight groups, the last two perhaps an IPv4 address; ``::`` stands for one group or more."""
    last = rf"(?:{_H16}:{_H16}|{_IPV4})"
    ways = [rf"(?:{_H16}:){{6}}{last}"]
    for before in range(8):
        left = rf"{_H16}(?::{_H16}){{{before - 1}}}" if before else ""
        most = 7 - before  # groups after the "::"
        right = [rf"(?:{_H16}:){{0,{most - 1}}}{_H16}"] if most else []
        right += [rf"(?:{_H16}:){{0,{most - 2}}}{_IPV4}"] if most >= 2 else []
        ways.append(rf"{left}::(?:{'|'.join(right)})?" if right else rf"{left}::")
    return "(?:" + "|".join(ways) + ")"


_IPV6 = _ipv6()
_LETTER = "[a-zA-Z0-9]"
_INNER = "[a-zA-Z0-9-]"
# At most 63 characters, no hyphen at either end, and none at both the third and the fourth place.
_LABEL = (
    rf"{_LETTER}(?:{_INNER}{{0,2}}{_LETTER}"
    rf"|{_INNER}(?:{_LETTER}{_INNER}|-{_LETTER}){_INNER}{{0,58}}{_LETTER})?"
)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"


def _hostname() -> Automaton:
    return bounded(full_match(_HOSTNAME), 1, 253)


def _idn_domain() -> str:
    """Labels of at most ten letters and digits of left-to-right scripts.

    Ten letters make at most 63 characters of punycode, and these letters need neither the context
    rules of RFC 5892 nor the bidirectional rule of RFC 5893.
    """
    letters = "".join(
        chr(c)
        for low, high in ((0xDF, 0x24F), (0x3AC, 0x3CE), (0x430, 0x45F))
        for c in range(low, high + 1)
        if unicodedata.category(chr(c)) == "Ll"
        and unicodedata.normalize("NFKC", chr(c).casefold()) == chr(c)
    )
    label = rf"[a-z0-9{letters}\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]{{1,10}}"
    return rf"{label}(?:\.{label})*"


def _idn_hostname() -> Automaton:
    return union((_hostname(), bounded(full_match(_idn_domain()), 1, 60)))


# -- e-mail: RFC 5321, 6531 ----------------------------------------------------------------------

_ATEXT = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,31}"'
_LOCAL = rf"(?:{_ATEXT}{{1,64}}|{_ATEXT}(?:\.?{_ATEXT}){{0,31}}|{_QUOTED})"
_LITERAL = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"


def _email() -> Automaton:
    """The domain is a host name or an address.

    Local parts have at most 64 characters, or 32 between dots or quotes; the whole has at most 254.
    """
    return bounded(full_match(rf"{_LOCAL}@(?:{_HOSTNAME}|{_LITERAL})", "a"), 3, 254)


def _idn_email() -> Automaton:
    """As ``email``, or up to 16 characters of any script before a domain of short labels."""
    letter = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]"
    quoted = r'"[ !#-\[\]-~\u0080-\U0010ffff]{0,14}"'
    local = full_match(rf"(?:{letter}+(?:\.{letter}+)*|{quoted})@{_idn_domain()}")
    lengths = full_match(r".{1,16}@[^@]{1,60}", "s")
    return union((_email(), combine((local, lengths))))


# -- URIs: RFC 3986, 3987, 6570 ------------------------------------------------------------------

_UCS = (
    r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(rf"\U{plane:04x}0000-\U{plane:04x}fffd" for plane in range(1, 14))
    + r"\U000e1000-\U000efffd"
)
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_PERCENT = r"%[0-9a-fA-F]{2}"


def _reference(more: str, in_query: str, absolute: bool) -> str:
    """A URI, or a URI reference; ``more`` are characters beyond ASCII."""
    plain = rf"a-zA-Z0-9._~!$&'()*+,;=\-{more}"
    pchar = rf"(?:[{plain}:@]|{_PERCENT})"
    no_colon = rf"(?:[{plain}@]|{_PERCENT})"
    address = rf"\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]"
    user = rf"(?:(?:[{plain}:]|{_PERCENT})*@)?"
    authority = rf"{user}(?:{address}|(?:[{plain}]|{_PERCENT})*)(?::\d*)?"
    segments = rf"(?:/{pchar}*)*"
    rooted = rf"/(?:{pchar}+{segments})?"
    hierarchy = rf"//{authority}{segments}|{rooted}"
    query = rf"(?:\?(?:[{plain}:@/?{in_query}]|{_PERCENT})*)?"
    fragment = rf"(?:\#(?:[{plain}:@/?]|{_PERCENT})*)?"
    uri = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{hierarchy}|{pchar}+{segments})?"
    if absolute:
        return uri + query + fragment
    relative = rf"(?:{hierarchy}|{no_colon}+{segments})?"
    return rf"(?:{uri}|{relative}){query}{fragment}"


_VARIABLE_CHAR = rf"(?:\w|{_PERCENT})"
_VARIABLE = rf"{_VARIABLE_CHAR}(?:\.?{_VARIABLE_CHAR})*(?:\*|:[1-9]\d{{0,3}})?"
_LITERALS = rf"(?:[!#$&'()*+,\-./0-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_PERCENT})"
_URI_TEMPLATE = rf"(?:{_LITERALS}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

# -- pointers and patterns -----------------------------------------------------------------------

_POINTER = r"(?:/(?:[^~/]|~[01])*)*"


def _regex() -> str:
    """Patterns that are valid in ECMA-262 and in Python alike."""
    escape = r"\\(?:[dDwWsSnrtfv.*+?^$()\[\]{}|/\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
    member = rf"(?:[^\\\]\[\n\r\u2028\u2029&~|^-]|{escape})"
    atom = rf"(?:[^\\^$.*+?()\[\]{{}}|\n\r\u2028\u2029]|\.|{escape}|\[\^?{member}+\])"
    count = r"(?:(?:[*+?]|\{\d{1,3}\})\??)?"
    for _ in range(3):
        branch = rf"\^?(?:{atom}{count})*\$?"
        atom = rf"(?:{atom}|\((?:\?:)?{branch}(?:\|{branch})*\))"
    return rf"{branch}(?:\|{branch})*"


_PATTERNS: dict[str, tuple[str, str]] = {
    "date": (_DATE, "a"),
    "duration": (_DURATION, "a"),
    "ipv4": (_IPV4, "a"),
    "ipv6": (_IPV6, "a"),
    "uuid": (r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", ""),
    "uri": (_reference("", "", True), "a"),
    "uri-reference": (_reference("", "", False), "a"),
    "iri": (_reference(_UCS, _PRIVATE, True), "a"),
    "iri-reference": (_reference(_UCS, _PRIVATE, False), "a"),
    "uri-template": (_URI_TEMPLATE, "a"),
    "json-pointer": (_POINTER, "s"),
    "relative-json-pointer": (rf"(?:0|[1-9]\d*)(?:\#|{_POINTER})", "as"),
    "regex": (_regex(), "a"),
}
_BUILDERS: dict[str, Callable[[], Automaton]] = {
    "time": _time,
    "date-time": _date_time,
    "hostname": _hostname,
    "idn-hostname": _idn_hostname,
    "email": _email,
    "idn-email": _idn_email,
}
FORMATS: Sequence[str] = tuple(sorted((*_PATTERNS, *_BUILDERS)))
"""The names that :func:`format_automaton` knows; all others are annotations."""


@cache
def format_automaton(name: str) -> Automaton:
    """The texts of a format in ``FORMATS``; each is one object per process."""
    if name in _PATTERNS:
        return full_match(*_PATTERNS[name])
    automaton = _BUILDERS[name]()
    automaton._source = (format_automaton, (name,))
    return automaton
