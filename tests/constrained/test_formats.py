"""The string formats: the calendar, the clock, addresses, URIs."""

from __future__ import annotations

import calendar
import datetime
import ipaddress
import random
import re
import uuid

import pytest

from sglang_lite.constrained.automaton import DEAD
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.formats import FORMATS, format_automaton

CASES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["1963-06-19", "2020-02-29", "0400-02-29", "0001-01-01", "9999-12-31"],
        ["2020-02-30", "2020-02-31", "2021-02-29", "2100-02-29", "0100-02-29", "0000-01-01",
         "2020-04-31", "2020-13-01", "2020-00-10", "2020-01-00", "2020-1-01", "20200101",
         "12020-01-01", "2020-01-01Z", "2020-01-0৪", "2013-350", ""],
    ),
    "time": (
        ["08:30:06Z", "08:30:06.283185z", "08:30:06+00:20", "12:34:56-00:00", "23:59:60Z",
         "01:29:60+01:30", "15:59:60.123-08:00", "00:29:60-23:30", "23:59:60+00:00"],
        ["08:30:06", "24:00:00Z", "00:60:00Z", "00:00:61Z", "22:59:60Z", "23:58:60Z", "8:3:6Z",
         "23:59:60+01:00", "23:59:60-00:30", "01:02:03+24:00", "01:02:03+00:60", "01:01:01,1Z",
         "01:02:03Z+00:30", "08:30:06 PST", "1২:00:00Z"],
    ),
    "date-time": (
        ["1963-06-19T08:30:06.283185Z", "1963-06-19t08:30:06z", "1998-12-31T23:59:60Z",
         "1998-12-31T15:59:60.123-08:00", "1985-04-12T23:20:50.52+23:59"],
        ["1998-12-31T23:59:61Z", "1998-12-31T22:59:60Z", "1990-02-31T15:59:59-08:00",
         "1990-12-31T24:00:00Z", "1990-12-31T10:00:00+10:60", "1963-06-19 08:30:06Z",
         "1963-06-19T08:30:06", "1985-04-12T23:20:50Z\n"],
    ),
    "duration": (
        ["P4DT12H30M5S", "P1Y2M3D", "P1Y2M", "PT1H2M3S", "PT36H", "P2W", "P0D", "P01D", "PT1M"],
        ["P", "PT", "P1YT", "P1D2H", "P2S", "P1Y2W", "P1Y2D", "PT1H2S", "PT0.5S", "-P1D", "P1",
         "4D", "P2D1Y", ""],
    ),
    "email": (
        ["joe.bloggs@example.com", "te~st@example.com", '"joe bloggs"@example.com',
         '"joe@bloggs"@example.com', "joe@[127.0.0.1]", "joe@[IPv6:::1]", "a@b", "a" * 64 + "@b.c"],
        [".test@example.com", "test.@example.com", "te..st@example.com", "joe@invalid=domain.com",
         "joe@[127.0.0.300]", "two@ats@example.com", "2962", "@x", "a@", "a" * 65 + "@b.c",
         "joe@-x.com", "j oe@example.com"],
    ),
    "idn-email": (
        ["실례@실례.테스트", "δοκιμή@example.com", "a@b.c", "\U0001d54f@example.com"],
        ["2962", "user＠example.com", "实..例@a.b", "실" * 30 + "@a.b"],
    ),
    "hostname": (
        ["www.example.com", "h0stn4me", "1host", "a--b.com", "a" * 63 + ".com", "x"],
        ["", ".", ".a", "a.", "-a", "a-", "a_b", "a" * 64, "a..b", "xn--X", "\u212aelvin.com",
         ".".join(["a" * 63] * 4)],
    ),
    "idn-hostname": (
        ["실례.테스트", "hostname", "bücher.example", "例え.jp"],
        ["", "〮실례", "실〮례", "-hello", "l\u00b7l-", "a.b.", "ABCé",
         "\u0628\u0660\u06f0", "a\u05d0"],
    ),
    "ipv4": (
        ["192.168.0.1", "0.0.0.0", "255.255.255.255"],
        ["256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", "0x7f.0.0.1", "1২7.0.0.1"],
    ),
    "ipv6": (
        ["::1", "::", "d6::", "1:d6::42", "1::d6:192.168.0.1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4",
         "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1000:1000:1000:1000:1000:1000:255.255.255.255"],
        ["12345::", "::abcef", "1::d6::42", ":2:3:4:5:6:7:8", "1:2:3:4:5:6:7:", "1", "127.0.0.1",
         "1:2:3:4:5:::8", "1:2:3:4:1.2.3", "fe80::/64", "fe80::a%eth1", "[::1]", "1:2:3:4:5:6:7",
         "::1.2.3.04", "100:100:100:100:100:100:100:1.2.3.4"],
    ),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380",
         "2eb8aa08-aa98-11ea-b4aa-73b441d1638g", "2eb8-aa08-aa98-11ea-b4aa73b44-1d16380"],
    ),
    "uri": (
        ["http://foo.bar/?baz=qux#quux", "http://-.~_!$&'()*+,;=:%40:80%2f::::::@example.com",
         "ldap://[2001:db8::7]/c=GB?objectClass?one", "mailto:John.Doe@example.com", "tel:+1-8",
         "urn:oasis:names:specification:docbook:dtd:xml:4.1.2", "http://999.999.999.999/", "a:"],
        ["//foo.bar/", "/abc", "abc", "http:// shouldfail.com", ":// should fail", "a,b:foo",
         "https://[@example.org/t", "https://e.org/foobar\u00ae.txt", "http://e.org/a\\b",
         "http://e.org/%6G", "http://e.com:abc/", "http:/[::1]", "http://[::ffff:01.2.3.4]",
         "1http://a", "http://2001:0db8:85a3::7334", "http://e.org/a b", 'http://e.org/"'],
    ),
    "uri-reference": (
        ["http://foo.bar/", "//foo.bar/?b", "/abc", "abc", "#fragment", "", "?q=1", "//", "./a:b"],
        ["\\\\WINDOWS\\f", "#frag\\ment", "/foobar\u00ae.txt", "/%zz", "/[::1]", "1:b", "//a@b@c/"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "http://foo.com/blah_(wiki)_blah", "http://[::1]/é"],
        ["http://2001:0db8:85a3::7334", "/abc", "\\\\WINDOWS\\filëßåré", "âππ", "http://e/<é>"],
    ),
    "iri-reference": (
        ["//ƒøø.ßår/?∂éœ=πîx#πîüx", "/âππ", "âππ", "#ƒrägmênt"],
        ["\\\\WINDOWS\\filëßåré", "#ƒräg\\mênt"],
    ),
    "uri-template": (
        ["http://e.com/d/{term:1}/{term}", "", "{+var}", "{var*}", "{x,y}", "{a.b}", "{%41}",
         "{v:1000}", "a'b", "a😀b", "a%41b", "{?q,lang}"],
        ["{term:1}/{term", "{}", "{a,,b}", "{v:0}", "{v:10000}", "foo}bar", "{a..b}", "{v:01}",
         "a b", "a\x7fb", "{a,}", "{var=def}", "{,+var}"],
    ),
    "json-pointer": (
        ["", "/", "/foo//bar~0/baz~1/%a", "/ü"],
        ["foo", "/foo/bar~", "~0", "/~2", "#/a"],
    ),
    "relative-json-pointer": (
        ["1", "0/foo/bar", "0#", "120/foo", "0//"],
        ["", "/foo", "-1/a", "+1/a", "01/a", "01#", "0##", "0/~2", "1#/a", "1\n", "٣/a"],
    ),
    "regex": (
        [r"([abc])+\s+$", "a|b", "^[^x]{2}?$", r"\d+(?:a|(b))*", ""],
        ["^(abc]", "(", "a**", "[", r"\a", r"(a)\1", "{2}", "[z-a]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_format(name: str) -> None:
    automaton = format_automaton(name)
    accepted, refused = CASES[name]
    assert [text for text in accepted if not automaton.matches(text)] == []
    assert [text for text in refused if automaton.matches(text)] == []


def test_dates_are_those_of_the_calendar() -> None:
    automaton = format_automaton("date")
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2020, 2023, 2100, 9999):
        for month in range(14):
            known = 1 <= month <= 12
            last = calendar.monthrange(year, month)[1] if known else 0
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                assert automaton.matches(text) == (1 <= day <= last), text


def test_leap_seconds_are_at_midnight_in_utc() -> None:
    automaton = format_automaton("time")
    for minutes in range(0, 1440, 5):
        for sign, factor in (("+", 1), ("-", -1)):
            for local in (1439, (1439 + factor * minutes) % 1440):
                clock = f"{local // 60:02}:{local % 60:02}:60"
                text = f"{clock}{sign}{minutes // 60:02}:{minutes % 60:02}"
                midnight = (local - factor * minutes) % 1440 == 1439
                assert automaton.matches(text) == (midnight and minutes % 15 == 0), text


def is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version and "%" not in text
    except ValueError:
        return False


def test_addresses_are_those_of_ipaddress() -> None:
    draw = random.Random(5)
    pieces = ["", "0", "1", "12", "ab", "ffff", "10000", "1.2.3.4", "01", ":", "g"]
    for _ in range(4_000):
        text = ":".join(draw.choices(pieces, k=draw.randint(1, 9), cum_weights=None))
        if draw.random() < 0.4:
            groups = draw.choices(["0", "ab", "1234"], k=draw.randint(0, 9))
            groups.insert(draw.randint(0, len(groups)), "")
            text = ":".join(groups)
        assert format_automaton("ipv6").matches(text) == is_ip(text, 6), text
    for _ in range(2_000):
        text = ".".join(draw.choices(["0", "00", "9", "25", "255", "256", "199", "1a"], k=4))
        assert format_automaton("ipv4").matches(text) == is_ip(text, 4), text


def samples(name: str, count: int) -> list[str]:
    """Texts of the format, from random walks that head home after a while."""
    draw = random.Random(name)
    automaton, found = format_automaton(name), []
    for _ in range(count):
        text, state = "", 0
        for step in range(300):
            if automaton.accepts(state) and draw.random() < 0.2:
                break
            arcs = automaton.arcs(state)
            ways = [c for c, t in enumerate(arcs.targets) if t != DEAD]
            if not ways:
                break
            if step > 20:
                ways.sort(key=lambda c: automaton.shortest(arcs.targets[c]))
                ways = ways[:1]
            number = draw.choice(ways)
            ranges = arcs.partition.char_set(number).ranges()
            code_point = draw.choice(ranges)[draw.randint(0, 1)]
            text += chr(code_point) if code_point != 0xDFFF else "\ud7ff"
            state = arcs.targets[number]
        assert automaton.accepts(state), text
        found.append(text)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_valid_elsewhere(name: str) -> None:
    for text in samples(name, 30):
        assert text_dfa(format_automaton(name), "utf8", False).matches(text.encode())
        if name == "date":
            datetime.date.fromisoformat(text)
        elif name == "uuid":
            uuid.UUID(text)
        elif name in ("ipv4", "ipv6"):
            assert is_ip(text, int(name[-1]))
        elif name == "regex":
            re.compile(text)
        elif name in ("hostname", "idn-hostname"):
            assert all(0 < len(label.encode("punycode")) <= 64 for label in text.split("."))
        elif name == "email":
            assert len(text.rpartition("@")[0]) <= 64
