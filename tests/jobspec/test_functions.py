"""The functions of the language, beyond what was recorded elsewhere: edges, refusals, and those that are ours."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.disk import DiskFiles
from fedsched.jobspec.functions import FUNCTIONS
from fedsched.jobspec.problems import JobfileProblems
from fedsched.jobspec.source import Source
from fedsched.jobspec.syntax import parse_expression
from tests.jobspec.asking import in_json, problem, value
from tests.jobspec.vectors import MemoryFiles

RESULTS = [
    # numbers
    ("abs(-0.5)", "0.5"),
    ("ceil(-0.5)", "0"),
    ("floor(-0.5)", "-1"),
    ("log(100, 10)", "2"),
    ("ceil(1 / 0) == 1 / 0", "true"),
    ("floor(-1 / 0) == -1 / 0", "true"),
    ("pow(10, 400) == 1 / 0", "true"),
    ("pow(-10, 401) == -1 / 0", "true"),
    ("pow(0, -1) == 1 / 0", "true"),
    ("log(2, 1) == 1 / 0", "true"),
    ("pow(2, -1)", "0.5"),
    ("pow(2, 0.5) > 1.414", "true"),
    ("max(1, 2.5, -3)", "2.5"),
    ("signum(-0)", "0"),
    ("sum([1, 2.5, 3])", "6.5"),
    ('sum(["1", 2])', "3"),
    ('parseint("zZ", 62)', "2231"),
    ('parseint("-ff", 16)', "-255"),
    # texts
    ('substr("hello", 0, -1)', '"hello"'),
    ('substr("hello", 1, 0)', '""'),
    ('title("a-b c_d")', '"A-B C_d"'),
    ('split("", "")', "[]"),
    ('join("-", [], ["a"])', '"a"'),
    ('join("-")', '""'),
    ('trim("abc", "")', '"abc"'),
    ('lower("ÀÉ")', '"àé"'),
    ('upper("straße")', '"STRAßE"'),
    ('strlen("\\U0001F1E9\\U0001F1EA\\U0001F1EB\\U0001F1F7")', "2"),
    ('strrev("a\\r\\nb")', '"b\\r\\na"'),
    ('startswith("hello", "he")', "true"),
    ('endswith("hello", "he")', "false"),
    ('strcontains("hello", "ell")', "true"),
    ('indent(2, "a")', '"a"'),
    # patterns
    ('regex("[a-z]+", "123abc")', '"abc"'),
    ('regex("(\\\\d+)-(\\\\d+)?", "12-")', '["12",null]'),
    ('regex("(?P<a>\\\\d+)-(?P<b>\\\\d+)", "1-2")', '{"a":"1","b":"2"}'),
    ('regexall("[a-z]", "a1b2")', '["a","b"]'),
    ('regexall("([a-z])(\\\\d)", "a1b2")', '[["a","1"],["b","2"]]'),
    ('regexall("(?P<l>[a-z])", "12")', "[]"),
    ('regexall("(x)", "12")', "[]"),
    ('regex_replace("abc", "b", "$$")', '"a$c"'),
    ('regex_replace("abc", "(b)", "[$1][$9]")', '"a[b][]c"'),
    ('regex_replace("aéa", "é", "e")', '"aea"'),
    # lists
    ("chunklist([1, 2, 3], 0)", "[[1,2,3]]"),
    ("concat(convert([1], list(number)), convert([2], list(number)))", "[1,2]"),
    ("element([1, 2, 3], -1)", "3"),
    ("flatten([[1], convert([2, 3], set(number))])", "[1,2,3]"),
    ("slice(convert([1, 2, 3], list(number)), 1, 2)", "[2]"),
    ("range(3, 0, -1)", "[3,2,1]"),
    ("range(0)", "[]"),
    ("alltrue([])", "true"),
    ('alltrue([true, "false"])', "false"),
    ("anytrue([])", "false"),
    ("anytrue([false, true])", "true"),
    ("contains([1, 2], 2)", "true"),
    ('distinct([{ a = 1 }, { a = 1 }])', '[{"a":1}]'),
    # maps
    ('index(convert([5, 6], list(number)), 1)', "6"),
    ("length(convert({ a = 1 }, map(number)))", "1"),
    ("length(convert([1, 1], set(number)))", "1"),
    ('zipmap(["a"], convert([1], list(number)))', '{"a":1}'),
    ("merge(null)", "{}"),
    # sets
    ("setsubtract([1, 2, 3], [2])", "[1,3]"),
    ("setsubtract([], [2])", "[]"),
    ("setintersection([1], [])", "[]"),
    ("setproduct([], [1])", "[]"),
    ('setproduct([1, [2]], [true])', '[[1,true],[[2],true]]'),
    # conversions
    ("tostring(1.50)", '"1.5"'),
    ("tostring(null)", "null"),
    ('tonumber("1e2")', "100"),
    ('tobool("true")', "true"),
    ('tolist([1, "a"])', '["1","a"]'),
    ("toset([3, 1, 3])", "[1,3]"),
    ('tomap({ a = 1, b = "c" })', '{"a":"1","b":"c"}'),
    ('convert({ a = 1 }, map(any))', '{"a":1}'),
    ('convert([[1], ["a"]], list(list(any)))', '[["1"],["a"]]'),
    ("convert(convert({ a = 1 }, map(number)), object({ a = string }))", '{"a":"1"}'),
    # text forms
    ('base64encode("a\\u0000b")', '"YQBi"'),
    ('csvdecode("a,b\\n\\n1,2\\n")', '[{"a":"1","b":"2"}]'),
    ('csvdecode("a\\n")', "[]"),
    ('jsondecode("{\\"a\\": 1, \\"a\\": 2}")', '{"a":2}'),
    ('jsondecode("\\"\\\\ud800\\"")', '"\ufffd"'),
    ('jsondecode("-0.10")', "-0.1"),
    ('yamldecode("")', "null"),
    ('yamldecode("a: &x {b: 1}\\nc: *x")', '{"a":{"b":1},"c":{"b":1}}'),
    ('yamldecode("a: &x {b: 1, c: 2}\\nd:\\n  <<: *x\\n  c: 3")', '{"a":{"b":1,"c":2},"d":{"b":1,"c":3}}'),
    ('yamldecode("a: &x {b: 1}\\ne: &y {f: 2}\\nd:\\n  <<: [*x, *y]")', '{"a":{"b":1},"d":{"b":1,"f":2},"e":{"f":2}}'),
    ('yamldecode("[0x1f, 0b11, -0o7, 1e3, .5, +1]")', "[31,3,-7,1000,0.5,1]"),
    ('yamldecode("[0x, 0b2, 1.2.3, -, .]")', '["0x","0b2","1.2.3","-","."]'),
    ('yamldecode("2001-12-14T21:59:43.10-05:00")', '"2001-12-14T21:59:43.1-05:00"'),
    ('yamldecode("2001-12-14 21:59:43")', '"2001-12-14T21:59:43Z"'),
    ('yamldecode("!!binary aGk=")', '"hi"'),
    ('yamldecode("[!!int 1, !!float 1.5, !!bool yes, !!null ~]")', "[1,1.5,true,null]"),
    ('yamldecode("|\\n a\\n b\\n")', '"a\\nb\\n"'),
    ('yamldecode("\'1\'")', '"1"'),
    ('yamldecode("{1.5: a, true: b}")', '{"1.5":"a","true":"b"}'),
    ('yamlencode({ a = "x\\ny\\n", b = [], c = {}, d = null, e = true })',
     '"\\"a\\": |\\n  x\\n  y\\n\\"b\\": []\\n\\"c\\": {}\\n\\"d\\": null\\n\\"e\\": true\\n"'),
    ('yamlencode([{ a = 1, b = 2 }, "x\\ny"])', '"- \\"a\\": 1\\n  \\"b\\": 2\\n- |-\\n  x\\n  y\\n"'),
    ('yamlencode("a ")', '"\\"a \\"\\n"'),
    ('yamlencode("a\\n\\n")', '"|+\\n  a\\n\\n"'),
    ('yamlencode("\\n")', '"\\"\\\\n\\"\\n"'),
    ('urlencode("a/b?c=d e")', '"a%2Fb%3Fc%3Dd+e"'),
    # dates
    ('timeadd("2024-02-28T23:59:59Z", "1s")', '"2024-02-29T00:00:00Z"'),
    ('timeadd("2024-01-01T00:00:00-03:30", "-1m")', '"2023-12-31T23:59:00-03:30"'),
    ("formatdate(\"h 'o''clock'\", \"2024-01-01T09:05:00Z\")", '"9 o\'clock"'),
    ('formatdate("HH aa DD MM ss", "2024-01-02T00:05:09Z")', '"12 am 02 01 09"'),
    # ids
    ("uuidv4()", '"00000000-0000-4000-8000-000000000000"'),
    ('uuidv5("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "a") == uuidv5("dns", "a")', "true"),
    # networks
    ('cidrhost("fd00::/64", -1)', '"fd00::ffff:ffff:ffff:ffff"'),
    ('cidrsubnets("fd00::/48", 16, 16)', '["fd00::/64","fd00:0:0:1::/64"]'),
    # flow
    ("try(1 / 0 == 1, 2)", "false"),
    ('can(regex("(", "a"))', "false"),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "result"), RESULTS, ids=lambda text: text[:60])
def test_a_function_gives(expr: str, result: str) -> None:
    assert in_json(expr) == result


REFUSALS = [
    ("log(1, 1)", "base 1"),
    ("log(-1, 10)", "negative number has no logarithm"),
    ("pow(-2, 0.5)", "root of a negative"),
    ("sum([])", "nothing to add"),
    ("sum([1, null])", "element 1 is null"),
    ('parseint(1, 10)', "a string is needed"),
    ('parseint("1", 2.5)', "base is a whole number"),
    ("indent(-1, \"x\")", "must not be negative"),
    ("sort([\"a\", null])", "element 1 is null"),
    ("concat()", "at least one"),
    ("element([], 0)", "empty list"),
    ("slice([1], 0, 2)", "greater than the length"),
    ("slice([1], 1, 0)", "greater than the end"),
    ("slice([1], 0.5, 1)", "whole number"),
    ("range(0, 5, -1)", "negative step"),
    ("range(5, 0, 1)", "positive step"),
    ('index({}, "a")', "list, tuple or map"),
    ('index(convert({ a = 1 }, map(number)), "b")', "there is no 'b'"),
    ("index(convert({ a = 1 }, map(number)), 1)", "key of a map"),
    ("index([1], 1)", "no element 1"),
    ('lookup(convert({ a = 1 }, map(number)), "b", "x")', "a number is needed"),
    ('lookup([], "b", "x")', "map or object"),
    ('zipmap(["a"], [])', "1 keys do not fit 0"),
    ('zipmap(["a"], "b")', "list or tuple"),
    ("setunion([1], [[2]])", "same type"),
    ('setproduct(["a"], "b")', "list, tuple or set"),
    ('regex("a", "b")', "does not match"),
    ('regex("(?P<a>x)(y)", "xy")', "all groups"),
    (f'regex("{"a" * 2000}", "b")', "pattern may have"),
    ('base64decode("/w==")', "no text"),
    ('csvdecode("a,b\\n1\\n")', "1 fields"),
    ('csvdecode("a\\n\\"x\\"y\\n")', "no CSV"),
    ('jsondecode("NaN")', "no NaN"),
    ('jsondecode("1e99999")', "exponent"),
    ("jsonencode(1 / 0)", "infinity"),
    ('yamldecode("*a")', "nothing is named|found undefined"),
    ('yamldecode("[a]: b")', "keys must be"),
    ('yamldecode("!foo a")', "not known"),
    ('yamldecode("!!int a")', "is no int"),
    ('yamldecode("1e99999")', "exponent"),
    ('yamldecode("{")', "no YAML: line"),
    ('timeadd("2024-13-01T00:00:00Z", "1s")', "is no time"),
    ('timeadd("9999-12-31T23:59:59Z", "1s")', "outside"),
    ('timeadd("2024-01-01T00:00:00+01:99", "1s")', "is no time"),
    ('formatdate("QQ", "2024-01-01T00:00:00Z")', "stands for nothing"),
    ('uuidv5("nope", "a")', "none of dns"),
    ('bcrypt("a", 3)', "cost goes from"),
    ('bcrypt("a", 4, 5)', "at most"),
    (f'bcrypt("{"a" * 73}")', "72 bytes"),
    ('cidrsubnet("10.0.0.0/24", 2, 4)', "no subnet number"),
    ('cidrsubnets("10.0.0.0/24", 9)', "cannot be extended"),
    ('cidrhost("10.0.0.0/99", 1)', "is no network"),
    ('file("x")', "files cannot be used here"),
    ("tonumber([])", "a number is needed"),
    ("try(var.a, var.b)", "the last problem"),
    ("convert(1, foo)", "is no type"),
    ("convert(1, foo(1))", "is no type of types"),
    ("convert(1, \"string\")", "without quotes"),
    ("convert(1, tuple(string))", "list of types"),
    ("convert(1, object(string))", "in braces"),
    ('convert(1, object({ "a" = string }))', "without quotes"),
    ("convert(1, map())", "takes one argument"),
    ('format("%")', "ends in the middle"),
    ('format("%d %d", 1)', "no argument 2"),
    ('format("%d", 1, 2)', "only 1 are used"),
    ('format("%t", 1)', "a bool is needed"),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "words"), REFUSALS, ids=lambda text: text[:60])
def test_a_function_refuses(expr: str, words: str) -> None:
    told = problem(expr)

    assert any(word in told for word in words.split("|")), told


FORMATS = [
    ('"%+d|% d|%#x|%#o", 5, 5, 255, 8', "+5| 5|0xff|010"),
    ('"%6.2f|%-8.1f|%+.0f", 3.14159, 2.55, 2.5', "  3.14|2.5     |+2"),
    ('"%.3e|%E", 0.00012345, 1500', "1.234e-04|1.500000E+03"),
    ('"%g|%g|%g", 100000, 1000000, 0.00001', "100000|1e+06|1e-05"),
    ('"%.3g|%.2G", 1234.5, 0.00001234', "1.23e+03|1.2E-05"),
    ('"%v|%v|%v", 1000000, 0.1, -2', "1e+06|0.1|-2"),
    ('"%v %v", true, { a = 1 }', 'true {"a":1}'),
    ('"%q|%5t|%-6t|", "a\\"b", true, false', '"a\\"b"| true|false |'),
    ('"%05d|%-5d|%5d", -42, 42, 42', "-0042|42   |   42"),
    ('"%[2]d %[1]d %d", 1, 2', "2 1 2"),
    ('"%.5d|%b", 42, 5', "00042|101"),
    ('"%f", 1 / 0', "+Inf"),
    ('"%v", 1 / 0', "+Inf"),
    ('"%e|%f|%g", 0, 0, 0', "0.000000e+00|0.000000|0"),
    ('"%.1e", 9.96', "1.0e+01"),
    ('"%s|%5s|%-5s|%.2s", "é", "é", "é", "éàü"', "é|    é|é    |éà"),
    ('"%x", 1e30', "c9f2c9cd04674edea40000000"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "result"), FORMATS, ids=lambda text: text[:60])
def test_format_prints(args: str, result: str) -> None:
    assert value(f"format({args})").text == result


def test_formatlist_repeats_what_is_no_list() -> None:
    assert in_json('formatlist("%s-%s", ["a", "b"], "x")') == '["a-x","b-x"]'


def test_bcrypt_uses_the_chance_it_is_given() -> None:
    assert value('bcrypt("secret", 4)').text.startswith("$2a$04$......................")


def test_what_needs_chance_refuses_without_it() -> None:
    with pytest.raises(JobfileProblems, match="chance"):
        evaluate.value(parse_expression(Source("uuidv4()", "x")), Context(functions=FUNCTIONS))


def test_rsadecrypt_opens_what_the_public_key_closed() -> None:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    closed = base64.b64encode(key.public_key().encrypt(b"hello", padding.PKCS1v15())).decode()

    assert value(f'rsadecrypt("{closed}", <<EOF\n{pem}EOF\n)').text == "hello"
    assert "no private key" in problem('rsadecrypt("", "x")')
    assert "cannot be decrypted" in problem(f'rsadecrypt("!", <<EOF\n{pem}EOF\n)')


FILES = MemoryFiles({"a.txt": "hello", "d/b.txt": "second", "d/e/c.md": "# c", "d/{x}.txt": "braces"})


@pytest.mark.parametrize(
    ("expr", "result"),
    [
        ('file("a.txt")', '"hello"'),
        ('fileexists("a.txt")', "true"),
        ('fileset(".", "d/?.txt")', '["d/b.txt"]'),
        ('fileset(".", "**/*.{md,txt}")', '["a.txt","d/b.txt","d/e/c.md","d/{x}.txt"]'),
        ('fileset("d", "[!a]*.txt")', '["b.txt","{x}.txt"]'),
        ('fileset("d", "[ab].txt")', '["b.txt"]'),
        ('abspath("a")', '"/here/a"'),
        ('pathexpand("~/x")', '"/home/me/x"'),
        ('pathexpand("~")', '"/home/me"'),
        ('basename("")', '"."'),
        ('dirname("/a/b")', '"/a"'),
    ],
)
def test_a_file_function_gives(expr: str, result: str) -> None:
    assert in_json(expr, files=FILES) == result


def test_a_missing_file_is_a_problem() -> None:
    assert "cannot be read" in problem('file("nope")', files=FILES)
    assert "own home" in problem('pathexpand("~you")', files=FILES)


def test_files_on_disk_are_read_from_the_job_files_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "sub" / "b.txt").write_bytes(b"\xff")
    disk = DiskFiles()

    def ask(expr: str) -> str:
        return in_json(expr, files=disk, directory=str(tmp_path))

    assert ask('file("a.txt")') == '"hello"'
    assert ask('filebase64("sub/b.txt")') == '"/w=="'
    assert ask('fileset(".", "**")') == '["a.txt","sub/b.txt"]'
    assert ask('[fileexists("a.txt"), fileexists("nope")]') == "[true,false]"
    assert "no text" in problem('file("sub/b.txt")', files=disk, directory=str(tmp_path))
    assert "not a file" in problem('fileexists("sub")', files=disk, directory=str(tmp_path))
    assert value('abspath("x")', files=disk).text.endswith("/x")
    assert value('pathexpand("~")', files=disk).text == str(Path.home())
    with pytest.raises(OSError, match="larger than"):
        disk.read("a.txt", str(tmp_path), 3)
    with pytest.raises(OSError, match="more than"):
        disk.under(".", str(tmp_path), 1)
