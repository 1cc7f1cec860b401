"""Any CEL expression that a selector can be: all operators, macros and functions, whatever its values share.

`expression` writes one, mostly of the right types, and large: values that double from one name to the next, long
literals, and loops around it all. What a user could think of to make an evaluation last is to be among them.
"""

from __future__ import annotations

import random
import re

from hypothesis import strategies as st

from claim_expressions import A, C
from gpuledger.formats.resource_claims.cel.functions import DECLARED

Kind = str
"""Of a value: one of the words in DECLARED, or of the language's own types."""

KINDS = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "optional", "quantity", "semver", "type")
_KIND_OF = {"texts": "list", "pattern": "string", "dyn": "int"}

_OWN = """
_+_(int,int) int
_+_(string,string) string
_+_(list,list) list
_+_(bytes,bytes) bytes
_-_(int,int) int
_*_(int,int) int
_/_(int,int) int
_%_(int,int) int
_/_(double,double) double
_==_(any,any) bool
_!=_(any,any) bool
_<_(string,string) bool
_<=_(int,double) bool
_>_(bytes,bytes) bool
_>=_(int,int) bool
_in_(any,list) bool
_in_(string,map) bool
_in_(int,map) bool
_[_](list,int) any
_[_](map,int) any
_[_](map,string) any
_[?_](map,int) optional
_[?_](list,int) optional
any.size() int
string.contains(string) bool
string.startsWith(string) bool
string.endsWith(string) bool
string.matches(string) bool
int(string) int
int(double) int
uint(string) uint
double(string) double
string(int) string
string(double) string
string(bytes) string
bytes(string) bytes
bool(string) bool
type(any) type
dyn(any) any
optional.of(any) optional
optional.ofNonZeroValue(any) optional
optional.none() optional
optional.hasValue() bool
optional.value() any
optional.or(optional) optional
optional.orValue(any) any
"""
_SIGNATURE = re.compile(r"(?P<target>\w+(?=\.\w+\())?\.?(?P<name>[^(]+)\((?P<parameters>[\w,]*)\) (?P<result>\w+)")
_FREE = ("sets", "lists", "optional.of", "optional.ofNonZeroValue", "optional.none")


def _signatures() -> list[tuple[str, tuple[Kind, ...], Kind]]:
    found = []
    for line in (*_OWN.split("\n"), *(each.declaration for each in DECLARED)):
        match = _SIGNATURE.fullmatch(line)
        if not match:
            continue
        name, parameters = match["name"], [each for each in match["parameters"].split(",") if each]
        target = match["target"]
        if target and (target in ("sets", "lists") or f"{target}.{name}" in _FREE):
            name = f"{target}.{name}"
        elif target:
            name, parameters = f".{name}", [target, *parameters]
        found.append(
            (
                name,
                tuple(_KIND_OF.get(each, each) for each in parameters),
                _KIND_OF.get(match["result"], match["result"]),
            )
        )
    return found


SIGNATURES = _signatures()
TEXTS = ("", "a", "ab", "GPU-0001", "1", "40Gi", "1.2.3", "x" * 50, "ä😀", ".", "[", "0x", "1e9")
PATTERNS = ("a*", "(a|b|ab)*c", "[a-z0-9]{1,9}", r"(x+x+)+y", ".*?", "(?i:ab)", r"\\pL", "(xx|x){30}y", "(")
LONG = (
    lambda n: "1" * n,
    lambda n: "1" * n + "!",
    lambda n: "x" * n,
    lambda n: "a." * (n // 2),
    lambda n: "1.0.0-" + "1." * (n // 2) + "1",
    lambda n: "1.0.0-" + "a" * n,
    lambda n: "0" * n + "1",
    lambda n: "1e" + "1" * min(n, 390),
    lambda n: "." + "9" * min(n, 390),
    lambda n: "v1.2-" + "0" * n,
    lambda n: "😀" * (n // 4),
)


class _Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: list[tuple[str, Kind]] = []
        self.left = 60

    def kind_of(self, wanted: Kind) -> Kind:
        return self.rng.choice(KINDS) if wanted == "any" else wanted

    def value(self, wanted: Kind, depth: int) -> str:
        self.left -= 1
        kind = self.kind_of(wanted)
        named = [name for name, of in self.names if of == kind]
        if named and self.rng.random() < 0.5:
            return self.rng.choice(named)
        if self.names and self.rng.random() < 0.02:
            return f"dyn({self.rng.choice(self.names)[0]})"
        if depth <= 0 or self.left < 0 or self.rng.random() < 0.2:
            return self.literal(kind)
        if kind == "bool" and self.rng.random() < 0.3:
            return self.truth(depth)
        if kind == "list" and self.rng.random() < 0.3:
            return self.made_list(depth)
        fitting = [each for each in SIGNATURES if each[2] in (kind, "any")]
        return self.call(self.rng.choice(fitting), depth) if fitting else self.literal(kind)

    def call(self, signature: tuple[str, tuple[Kind, ...], Kind], depth: int) -> str:
        name, kinds, _ = signature
        args = [self.value(each, depth - 1) for each in kinds]
        if name in ("_[_]", "_[?_]"):
            return f"dyn({args[0]})[{'?' if '?' in name else ''}dyn({args[1]})]"
        if name == ".matches" and self.rng.random() < 0.7:
            args[1] = f"'{self.rng.choice(PATTERNS)}'"
        if name.startswith("_"):
            return f"(dyn({args[0]}) {name.strip('_')} dyn({args[1]}))"
        if name.startswith("."):
            return f"dyn({args[0]}){name}({', '.join(f'dyn({each})' for each in args[1:])})"
        return f"{name}({', '.join(f'dyn({each})' for each in args)})"

    def truth(self, depth: int) -> str:
        one, two = self.value("bool", depth - 1), self.value("bool", depth - 1)
        form = self.rng.choice(
            ("({} && {})", "({} || {})", "!({})", "({} ? {} : true)", "({} ? false : {})", "loop", "has")
        )
        if form == "has":
            return f"has({A}.{self.rng.choice(('index', 'nothing', 'model'))})"
        if form == "loop":
            return self.loop(self.rng.choice(("all", "exists", "exists_one")), depth)
        return form.format(one, two)

    def loop(self, macro: str, depth: int) -> str:
        items, name = self.value(self.rng.choice(("list", "list", "map")), depth - 1), f"x{len(self.names)}"
        self.names.append((name, self.rng.choice(("int", "string", "list"))))
        body = self.value("any" if macro == "map" else "bool", depth - 1)
        self.names.pop()
        return f"dyn({items}).{macro}({name}, dyn({body}))"

    def made_list(self, depth: int) -> str:
        if self.rng.random() < 0.4:
            return self.loop(self.rng.choice(("map", "filter")), depth)
        kind = self.rng.choice(KINDS)
        return f"[{', '.join(f'dyn({self.value(kind, depth - 1)})' for _ in range(self.rng.randrange(4)))}]"

    def literal(self, kind: Kind) -> str:
        rng = self.rng
        number = rng.choice((0, 1, 2, 7, -1, 100, 2**31, 2**63 - 1))
        text, count = rng.choice(TEXTS), rng.choice((3, 20, 200))
        forms: dict[Kind, tuple[str, ...]] = {
            "int": (str(number), f"{A}.index", f"int({A}.index)"),
            "uint": (f"{abs(number)}u",),
            "double": ("0.0", "1.5", "-2.5", "1e300", "0.1", "(1.0/0.0)"),
            "bool": ("true", "false", "device.allowMultipleAllocations"),
            "string": (repr(text), f"{A}.model", f"{A}.uuid"),
            "bytes": ("b'a'", "b'abc'", f"b'{'x' * 40}'"),
            "list": ("[]", "[1, 2, 3]", "['a', 'b']", f"lists.range({count})", "[[1], [2]]"),
            "map": ("{}", "{'a': 1}", "{1: 'a', 2: 'b'}", f"dyn({A})", f"dyn({C})", "dyn(device.attributes)"),
            "optional": ("optional.of(1)", "optional.none()", f"{A}[?'index']", f"{A}.?nothing"),
            "quantity": (f"{C}.memory", *(f"quantity('{each}')" for each in ("40Gi", "1.5", "1e300", "1"))),
            "semver": ("semver('1.2.3')", "semver('1.2.3-alpha.1')", "semver('v1', true)"),
            "type": ("int", "string", "type(1)"),
        }
        return rng.choice(forms.get(kind, forms["int"]))

    # Values that are large.

    def large(self, kind: Kind) -> str:
        """Return a literal as long as an expression can have some of them."""
        size = self.rng.choice((10, 100, 400, 1500, 4000))
        text = self.rng.choice(LONG)(size)
        if kind == "string":
            return f"'{text}'"
        if kind == "bytes":
            return f"b'{text[: size // 2]}'"
        if kind == "list":
            item = self.rng.choice(("1", "'a'", "[1]", "1.5", "true", "b'x'", "{}", "null"))
            return self.rng.choice((f"[{', '.join([item] * (size // 8))}]", f"lists.range({size})"))
        if kind == "map":
            return "{" + ", ".join(f"{number}: 1" for number in range(min(size // 8, 200))) + "}"
        if kind == "semver":
            return f"semver('1.0.0-{'1.' * (size // 4)}1')"
        if kind == "quantity":
            return f"quantity('{'9' * min(size, 390)}.5')"
        return self.literal(kind)

    def doubled(self, name: str, kind: Kind) -> tuple[str, Kind]:
        """Return a value that has another one twice, or more often."""
        if self.rng.random() < 0.5 and kind in ("string", "bytes", "list"):
            return f"{name} + {name}", kind
        if kind == "string" and self.rng.random() < 0.3:
            return f"{name}.replace('x', {name}.substring(0, 1) + {name})", kind
        forms = ("[{0}, {0}]", "[{0}, {0}, {0}]", "{{'a': {0}, 'b': {0}}}", "[optional.of({0}), optional.of({0})]")
        form = self.rng.choice(forms)
        return form.format(f"dyn({name})"), "map" if form.startswith("{{") else "list"

    def whole(self) -> str:
        """Return an expression: names for large values, then something true or false about them, maybe in loops."""
        bound: list[tuple[str, str]] = []
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            kind = self.rng.choice(("string", "list", "bytes", "map", "semver", "quantity", "string", "list"))
            value = self.large(kind)
            for _ in range(self.rng.choice((1, 2, 4, 7))):
                name = f"v{len(bound)}"
                bound.append((name, value))
                self.names.append((name, kind))
                value, kind = self.doubled(name, kind)
        body = self.value("bool", self.rng.randrange(1, 5))
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            name, count = f"l{len(bound)}", self.rng.choice((3, 30, 1000, 9999))
            body = f"lists.range({count}).{self.rng.choice(('all', 'exists'))}({name}, dyn({body}) || {name} >= 0)"
            body = body.replace("|| ", self.rng.choice(("|| ", "&& ")), 1) if self.rng.random() < 0.3 else body
        way = self.rng.choice(("bind", "exists"))
        for name, value in reversed(bound):
            body = f"cel.bind({name}, {value}, {body})" if way == "bind" else f"[{value}].exists({name}, {body})"
        return body


def expression(rng: random.Random) -> str:
    """Return an expression."""
    return _Writer(rng).whole()


def expressions() -> st.SearchStrategy[str]:
    """Return expressions, which Hypothesis shrinks."""
    return st.randoms(use_true_random=False).map(expression)
