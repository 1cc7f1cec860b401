"""CEL expressions of the kind that ResourceClaims have, and devices to put them to.

What people write is in EVERYDAY, what the language's corners hold in CORNERS, each with what Kubernetes 1.36.3 said
(DeviceMatches of k8s.io/dynamic-resource-allocation 0.36.3). The cluster's tests ask a kube-scheduler the same.
`random_expressions` makes more: mostly of the right types, over attributes that some devices lack or have with others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.formats.resource_claims import selectors
from gpuledger.model.errors import BadInput

Device = dict[str, Any]

DRIVER = "gpu.gpuledger.dev"
PCI = "resource.kubernetes.io"


def _device(name: str, attributes: dict[str, object], capacity: dict[str, str], shared: bool | None = True) -> Device:
    kinds = {bool: "bool", int: "int", str: "string", tuple: "version"}
    typed = {key: {kinds[type(each)]: each[0] if isinstance(each, tuple) else each} for key, each in attributes.items()}
    body: Device = {"name": name, "attributes": typed, "capacity": {k: {"value": v} for k, v in capacity.items()}}
    return body if shared is None else {**body, "allowMultipleAllocations": shared}


def _card(index: int, model: str, memory: str, driver: str, **others: object) -> Device:
    attributes = {
        "uuid": f"GPU-{index:04x}",
        "model": model,
        "vendor": "nvidia",
        "index": index,
        "isolation": "none" if index % 2 else "mps",
        "numaNode": index // 2,
        "driverVersion": (driver,),
        "ecc": index % 3 == 0,
        f"{PCI}/pcieRoot": f"pci0000:{index:02x}",
        **others,
    }
    return _device(f"gpu-{index}", attributes, {"memory": memory, "cores": "100", "slots": "10"})


CARDS: tuple[Device, ...] = (
    _card(0, "NVIDIA A100-SXM4-40GB", "40Gi", "580.65.6"),
    _card(1, "NVIDIA A100-SXM4-80GB", "80Gi", "580.95.5"),
    _card(2, "NVIDIA H100 80GB HBM3", "81559Mi", "580.65.6"),
    _card(3, "NVIDIA H200", "141Gi", "615.0.0-rc.1+build.5"),
    _card(4, "NVIDIA L40S", "46068Mi", "1.2.3"),
    _card(5, "Tesla T4", "15Gi", "1.2.3-alpha.1"),
)
"""As one node has them: with the same attributes."""

BARE = _device("bare", {}, {}, shared=None)
STRANGE = _device(
    "strange",
    {
        "uuid": 5,
        "model": "",
        "index": "0",
        "numaNode": True,
        "driverVersion": "1.2.3",
        "ecc": "true",
        "other.example.com/index": -7,
    },
    {"memory": "500m", "cores": "0", "other.example.com/memory": "1k"},
    shared=False,
)
UMLAUTS = _device(
    "umlauts",
    {"uuid": "GPU-äöß€", "model": "a.b.c", "index": 9223372036854775807, "driverVersion": ("1.0.0+only.build",)},
    {"memory": "12E"},
)
NODES: dict[str, tuple[Device, ...]] = {
    "cards": CARDS,
    "bare": (BARE,),
    "strange": (STRANGE,),
    "umlauts": (UMLAUTS,),
}
"""Node name -> its devices. Those that make many expressions fail are alone, so that the error is theirs only."""

A, C = f'device.attributes["{DRIVER}"]', f'device.capacity["{DRIVER}"]'


@dataclass(frozen=True)
class Answered:
    """An expression with Kubernetes' answers."""

    expression: str
    answers: Mapping[str, str]
    """Name of a device -> true, false or error."""


ANSWERS = {"t": "true", "f": "false", "e": "error"}


def _lines(text: str) -> tuple[Answered, ...]:
    names = [device["name"] for devices in NODES.values() for device in devices]
    found = []
    for line in text.strip().split("\n"):
        letters, _, expression = line.partition("  ")
        answers = [ANSWERS[letter] for letter in letters.replace(" ", "")]
        full = expression.replace("$A", A).replace("$C", C)
        found.append(Answered(full, dict(zip(names, answers, strict=True))))
    return tuple(found)


EVERYDAY = _lines(
    r"""
tttttt ttt  device.driver == "gpu.gpuledger.dev"
ffffff fff  device.driver != "gpu.gpuledger.dev"
tttttt fft  device.driver == "gpu.gpuledger.dev" && device.allowMultipleAllocations
ffffff ttf  !device.allowMultipleAllocations
tfffff eff  $A.model == "NVIDIA A100-SXM4-40GB"
ttffff eff  $A.model.startsWith("NVIDIA A100")
tttfff eff  $A.model.contains("A100") || $A.model.contains("H100")
tttfff eff  $A.model.lowerAscii().matches("^nvidia (a|h)100")
ttttff eff  $A.model.matches("[AH][12]00")
fffttf eff  $A.model in ["NVIDIA H200", "NVIDIA L40S"]
tttfft ett  !($A.model in ["NVIDIA H200", "NVIDIA L40S"])
ffftff eff  $A["model"] == "NVIDIA H200"
ffftff eff  $A.uuid == "GPU-0003"
fttfff eff  $A.uuid in ["GPU-0001", "GPU-0002"]
ttttff eef  $A.index < 4
ffttff eef  $A.index >= 2 && $A.index <= 3
tftftf eef  $A.index % 2 == 0
ftftft eee  $A.isolation == "none"
tftttf eee  $A.isolation == "mps" || $A.ecc
ffttff efe  $A.numaNode == 1
ffttff fff  has($A.numaNode) && $A.numaNode == 1
ffffff tft  !has($A.numaNode)
ttffff fff  "numaNode" in $A && $A["numaNode"] == 0
tfftff eee  $A.ecc
tffftt eee  $A.ecc ? $A.index < 3 : $A.index > 3
fftfff eee  device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:02"
tttttt fff  has(device.attributes["resource.kubernetes.io"].pcieRoot)
eeeeee ete  device.attributes["other.example.com"].index < 0
ffffff fff  has(device.attributes["nobody.example.com"].anything)
fttttf eft  $C.memory.isGreaterThan(quantity("40Gi"))
tttttf eft  $C.memory.compareTo(quantity("40Gi")) >= 0
tftftt etf  $C.memory.isLessThan(quantity("80Gi"))
tfffff eff  $C.memory == quantity("40Gi")
tfffff eff  $C["memory"].compareTo(quantity("41943040Ki")) == 0
tttftf eff  $C.memory.compareTo(quantity("40Gi")) >= 0 && $C.memory.compareTo(quantity("80Gi")) <= 0
tttttf fft  "memory" in $C && $C.memory.isGreaterThan(quantity("20Gi"))
tttttt efe  $C.cores.asInteger() >= 50
tttttt eee  $C.slots.asInteger() == 10 && $A.vendor == "nvidia"
ftttff eft  $C.memory.asApproximateFloat() / 1073741824.0 > 79.0
fttttf eft  $C.memory.sub(quantity("1Gi")).isGreaterThan(quantity("39Gi"))
ftftff eef  $A.driverVersion.isGreaterThan(semver("580.65.6"))
ttttff eef  $A.driverVersion.compareTo(semver("580.0.0")) > 0
tttftt eet  $A.driverVersion.isLessThan(semver("600.0.0"))
tttfff eef  $A.driverVersion.major() == 580
fffftf eff  $A.driverVersion == semver("1.2.3")
ftffff eff  cel.bind(gpu, device.attributes["gpu.gpuledger.dev"], gpu.index == 1 && gpu.model.endsWith("80GB"))
fffftt fff  $A.?numaNode.orValue(-1) == 2
ffttff fff  $A.?model.orValue("none").contains("H")
tttttt ftf  $A.exists(name, name == "ecc")
tttttt ttt  $A.all(name, name.size() < 20)
ttftff eff  ["A100", "H200"].exists(kind, $A.model.contains(kind))
tttttf eff  $A.model.split(" ")[0] == "NVIDIA"
fftfff eff  $A.model.split(" ").exists(word, word == "H100")
tttttf eee  $A.model.substring(0, 6) == "NVIDIA"
fttfff eff  $A.model.find("[0-9]+GB") == "80GB"
ttttff eee  int($A.model.find("[0-9]+")) >= 100
fftfff eff  string($A.index) + "x" == "2x"
ftftff eff  sets.intersects([$A.index], [1, 3])
tttfff eff  sets.contains([0, 1, 2], [$A.index])
tttttt ttt  true
ffffff fff  false
teetee eee  $A.ecc || $A.nothing == 1
teetee eee  $A.nothing == 1 || $A.ecc
effeff eee  $A.nothing == 1 && $A.ecc
eeeeee eee  $A.nothing == 1
"""
)
"""What people write."""

CORNERS = _lines(
    r"""
fttttt ett  $A.index != 0
ttttff eef  $A.index < 3.5
fftfff eff  $A.index == 2.0
tftfff eff  $A.index in [0, 2]
ffffff etf  $A.index == "0"
tfffff eee  $A.index + 1 == 1
tttttt eee  $A.index + 1 > $A.index
ttttff eee  $A.index * 2 <= 6
ffftff eef  -$A.index == -3
fttfff eef  $A.index - 1 in [0, 1]
ffttff eef  $A.index / 2 == 1
ettttt eet  1 / $A.index >= 0
efttff eef  7 % $A.index == 1
fftfff eff  uint($A.index) == 2u
fffttt eft  double($A.index) > 2.5
tttttt eft  type($A.index) == int
tttttt efe  type($A.ecc) == bool
tttttt eft  type($A.driverVersion) == type(semver("1.0.0"))
tttttt eft  type($A.uuid) == string
fftfff eff  dyn($A.index) == 2u
tfftff efe  $A.ecc == true
ffffff ete  $A.ecc == "true"
fttftt eee  !$A.ecc
tfftff eee  $A.ecc && true
tfftff ete  bool($A.ecc)
fttftt eee  $A.ecc < true
tttttt eet  $A.uuid.size() == 8
tttttt eet  size($A.uuid) == 8
ttffff eef  $A.uuid < "GPU-0002"
ftffff eef  $A.uuid.lowerAscii() == "gpu-0001"
ffffff eef  $A.uuid.upperAscii() == "GPU-ÄÖß€"
tttttt eef  $A.uuid.charAt(4) == "0"
tttttt eet  $A.uuid.indexOf("-") == 3
tttttt eef  $A.uuid.indexOf("0", 5) == 5
fttttt eef  $A.uuid.lastIndexOf("0") == 6
tttttt eef  $A.uuid.lastIndexOf("0", 5) == 5
ftffff eef  $A.uuid.replace("0", "") == "GPU-1"
ftffff eef  $A.uuid.replace("0", "", 2) == "GPU-01"
tttttt eet  $A.uuid.replace("", "-").size() == 17
tttttt eet  $A.uuid.split("-").size() == 2
ftffff eef  $A.uuid.split("", 3) == ["G", "P", "U-0001"]
tfffff eef  $A.uuid.split("0", -1).join("o") == "GPU-oooo"
fftfff eef  $A.uuid.substring(4) == "0002"
eeeeee eee  $A.uuid.substring(4, 99) == "0002"
tttttt eet  $A.uuid.trim() == $A.uuid
tttttt eef  $A.uuid.matches("^GPU-[[:xdigit:]]+$")
ffffff eet  $A.uuid.matches("\\p{L}{3}-(?i:ÄÖ)")
ftffff eef  $A.uuid.findAll("[0-9]") == ["0", "0", "0", "1"]
tttttt eet  $A.uuid.findAll("0*").size() > 3
tttttt eef  $A.uuid.findAll("0", 2) == ["0", "0"]
tttttt eet  $A.uuid.matches($A.uuid)
ffffff eft  $A.model.split(".") == ["a", "b", "c"]
ftffff etf  $A.model == "" || $A.index == 1
ffftff eff  [1, 3].max() == $A.index
tttttt ttt  [3, 1, 2].min() == 1 && [3, 1, 2].sum() == 6 && [1, 2].isSorted()
tttttt ttt  [1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2
eeeeee eee  dyn([1, 2, 1]).indexOf(dyn(1), 0) == 0
eeeeee eee  dyn([1, 2, 1]).lastIndexOf(dyn(1), 0) == 0
tttttt ttt  ["b", "a"].max() == "b" && ![2, 1].isSorted()
tttttt ttt  [].sum() == 0
ftttff eff  [1, 2, 3].filter(n, n != $A.index).size() == 2
fftftf eff  [1, 2, 3].map(n, n * 2).exists(n, n == $A.index)
tttttt eee  [1, 2, 3].map(n, n > 1, n * $A.index).size() == 2
tttfff eff  [0, 1, 2].exists_one(n, n == $A.index)
fftttt eet  [0, 1, 2].all(n, n <= $A.index)
eetete eee  [1, 0, 2].exists(n, 4 / n == $A.index)
eeffff eef  [1, 0, 2].all(n, 4 / n > $A.index)
eeeeee eee  [1, 0].map(n, 1 / n).size() == 2
eeetee ffe  $A.exists(k, $A[k] == 3)
eeettt ftt  $A.exists(k, $A[k] > 2)
tttftt ttt  $A.all(k, $A[k] != 3)
tttftt ttt  $A.all(k, $A[k] != "NVIDIA H200")
tttttt fff  $A.filter(k, k.startsWith("i")).size() == 2
tttttt ttt  $A.map(k, k).size() == size($A)
ffffff ftf  device.attributes.exists(d, d == "other.example.com")
tttttt ttt  device.attributes.all(d, device.attributes[d].all(k, k != ""))
tttttt ftf  size(device.attributes) == 2
tttttt ftt  "gpu.gpuledger.dev" in device.attributes
ffffff ftf  "other.example.com" in device.capacity
tttttt ttt  has(device.attributes.nobody)
tttttt ttt  device.attributes[?"nobody"].hasValue()
ffffff fff  device.capacity["nobody.example.com"].exists(k, true)
eeeeee ete  device.capacity["other.example.com"].memory == quantity("1000")
ffffff eff  has($A.index.deeper)
eeeeee eee  $A.index.deeper == 1
eeeeee eee  $A.model[0] == "N"
tttttt ttt  $A == device.attributes["gpu.gpuledger.dev"]
eeeeee eee  $A.driverVersion.isGreaterThan($C.memory)
tttttt ett  $A.driverVersion != $C.memory
eeeeee ete  $A.driverVersion == "1.2.3"
ffffff etf  "1.2.3" == $A.driverVersion
fffftt eef  $A.driverVersion.minor() == 2 && $A.driverVersion.patch() == 3
tttttt ttt  semver("v1.2", true) == semver("1.2.0")
tttttt ttt  isSemver("v1.2", true) && !isSemver("v1.2") && !isSemver("01.2.3")
tttttt ttt  semver("1.0.0-2").isLessThan(semver("1.0.0-11")) && semver("1.0.0-a").isGreaterThan(semver("1.0.0-11"))
tttttt ttt  semver("1.0.0+a") == semver("1.0.0+b")
tttttt eff  $C.memory.isInteger()
tttttt eee  $C.memory.asInteger() > 0
tfffff eff  $C.memory.add(quantity("1Gi")).compareTo(quantity("41Gi")) == 0
tttttt efe  $C.cores.add(5) == quantity("105")
eeeeee eee  quantity("105") == $C.cores.add(5)
tttttt efe  $C.cores.sub(100).asInteger() == 0
tttttt efe  sign($C.cores) == 1
fttttt ett  $C.memory != quantity("40Gi")
tfffff eff  quantity("40Gi") == $C.memory
tttttt ttt  isQuantity("1.5Gi") && !isQuantity("1.5gi") && !isQuantity("") && isQuantity("1e3") && isQuantity(".5")
ffffff fff  quantity("1.5Gi").isInteger() || quantity("1000m").isInteger()
tttttt ttt  quantity("100Ei") == quantity("9223372036854775807")
tttttt ttt  quantity("0.1n") == quantity("1n")
ftffff eff  cel.bind(broken, 1 / 0, $A.index == 1)
eeeeee eee  cel.bind(broken, 1 / 0, broken == $A.index)
tttttt ftt  cel.bind(all, $A, cel.bind(number, all.index, all.exists(k, all[k] == number)))
ftffff eff  optional.of($A.index).value() == 1
ftffff eff  optional.none().orValue($A.index) == 1
fftfff fff  $A.?nothing.or($A.?index).orValue(0) == 2
ftffff fee  $A.?index.optMap(i, i + 1).orValue(0) == 2
ftffff fff  $A[?"index"] == optional.of(1)
fttttt ett  optional.ofNonZeroValue($A.index).hasValue()
ftffff eff  {"a": $A.index}.a == 1
fftfff eff  {"a": 1, "b": 2}["b"] == $A.index
eteeee eee  {1: "one"}[$A.index] == "one"
fttfff eff  $A.index in {1: true, 2: false}
ftttff eff  [[1, 2], [3]].exists(l, $A.index in l)
tfftff ete  string($A.ecc) == "true"
fftfff eff  string(double($A.index)) == "2"
fftfff eff  int("2") == $A.index
eeeeee efe  int($A.uuid) == 1
tttttt ttt  double("1e3") > 999.0
tttttt eef  9223372036854775807 - $A.index > 0
teeeee eee  9223372036854775807 + $A.index > 0
tttttt ttt  "\u00e4\t" == "ä\t" && r"\d" == "\\d" && 'a' == "a"
tttttt ttt  b"abc".size() == 3
ffffff eff  null == $A.index
tttttt ttt  1.0 / 0.0 > 1.0 && 0.0 / 0.0 != 0.0 / 0.0
eeeeee eee  $A.index
eeeeee eee  $A.uuid
tfftff eee  $A.ecc ? $A.ecc : $A.ecc
tttttt ttt  [1, 2, 3].slice(1, 2) == [2] && [2, 1].sort() == [1, 2] && [1, 1].distinct() == [1]
tttttt ttt  [[1], [2]].flatten() == lists.range(3).slice(1, 3) && [1, 2].reverse() == [2, 1]
"""
)
"""What the corners of the language hold."""

REFUSED = _lines(
    r"""
ftffff eff  1 < 1.5 && $A.index == 1
tttttt ttt  "%s".format(["a"]) == "a"
tttttt ttt  duration("1h") > duration("1m")
tttttt ftt  $A.transformList(k, v, k).size() > 1
tttttt ttt  ["b", "a"].sortBy(x, x) == ["a", "b"]
tttttt ttt  isIP("10.0.0.1")
tttttt ttt  isURL("https://example.com")
tttttt ttt  cel.bind(d, device, d.driver == "gpu.gpuledger.dev")
tttttt ttt  device.?attributes.hasValue()
ftffff eff  has(device.driver) && $A.index == 1
"""
)
"""What Kubernetes takes and gpuledger refuses, with a place and a sentence."""


def compile_selector(text: str, where: str) -> selectors.Selector:
    """Return an expression, compiled, whatever it costs. Raises BadInput, which `where` begins, if that can't be."""
    found = selectors.KEPT.get(text) or selectors.KEPT.compile(text)
    if isinstance(found, str):
        raise BadInput(f"{where}: {found}")
    return found


def random_expressions(seed: int, count: int) -> list[str]:
    """Return expressions that are mostly of the right types."""
    return [_Writer(random.Random(f"{seed} {number}")).truth(3) for number in range(count)]  # noqa: S311 - no secret


LITERALS, ATTRIBUTES = ("0", "1", "2", "3", "-1"), (f"{A}.index", f"{A}.numaNode")


class _Writer:
    """Writes one expression."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _one(self, choices: Sequence[str]) -> str:
        return self._rng.choice(choices)

    def truth(self, depth: int) -> str:
        """Return something that is true or false."""
        if depth <= 0 or self._rng.random() < 0.15:
            return self._fact()
        one, two = self.truth(depth - 1), self.truth(depth - 1)
        return self._rng.choice(
            (
                lambda: f"({one} && {two})",
                lambda: f"({one} || {two})",
                lambda: f"!({one})",
                lambda: f"({one} ? {two} : {self._fact()})",
                lambda: f"({one}) {self._one(('==', '!='))} ({two})",
                self._comparison,
                self._fact,
                self._loop,
            )
        )()

    def _fact(self) -> str:
        name = self._one(("numaNode", "ecc", "nothing", "index", "uuid"))
        test, part = (
            self._one(("contains", "startsWith", "endsWith", "matches")),
            self._one(("A", "0", "GB", ".", "[12]")),
        )
        order, version = (
            self._one(("isLessThan", "isGreaterThan")),
            self._one(("1.2.3", "580.65.6", "1.2.3-alpha.2")),
        )
        return self._one(
            (
                f"{A}.ecc",
                f"has({A}.{name})",
                f'"{name}" in {A}',
                "device.allowMultipleAllocations",
                f"{A}.{name} == {self._one(('1', '2', 'true', chr(34) + 'GPU-0001' + chr(34)))}",
                f'{A}.model.{test}("{part}")',
                f'{A}.driverVersion.{order}(semver("{version}"))',
                f"{self.quantity()}.{order}({self.quantity()})",
                f"{self.quantity()} {self._one(('==', '!='))} {self.quantity()}",
                f"{self.number(1)} in {self._numbers()}",
            )
        )

    def _comparison(self) -> str:
        return f"{self.number(2)} {self._one(('<', '<=', '>', '>=', '==', '!='))} {self.number(2)}"

    def _loop(self) -> str:
        macro = self._one(("all", "exists", "exists_one"))
        if self._rng.random() < 0.5:
            items = self._numbers()
            return (
                f"{items}.{macro}(n, {self._one(('n', self.number(1)))} {self._one(('<', '==', '>'))} {self.number(1)})"
            )
        body = self._one(
            (f"{A}[k] == {self.number(0)}", f"{A}[k] > 1", 'k.contains("o")', f"has({A}.ecc) && {A}[k] != 3")
        )
        return f"{A}.{macro}(k, {body})"

    def _numbers(self) -> str:
        """Return a list of integers: Kubernetes does not take one of attributes and literals."""
        kind = self._rng.choice((LITERALS, ATTRIBUTES))
        return f"[{', '.join(self._one(kind) for _ in range(3))}]"

    def number(self, depth: int) -> str:
        """Return an integer."""
        if depth <= 0 or self._rng.random() < 0.3:
            return self._one((*LITERALS, *ATTRIBUTES))
        one, two = self.number(depth - 1), self.number(depth - 1)
        return self._one(
            (
                f"({one} {self._one(('+', '-', '*', '/', '%'))} {two})",
                f"size({A}.{self._one(('model', 'uuid'))})",
                f"{A}.?{self._one(('index', 'nothing', 'numaNode'))}.orValue({one})",
                f"{self._numbers()}.{self._one(('min', 'max', 'sum'))}()",
                f"{self.quantity()}.compareTo({self.quantity()})",
                f"{self.quantity()}.asInteger()",
                f"{A}.driverVersion.{self._one(('major', 'minor', 'patch'))}()",
                f"{A}.uuid.indexOf({self._one(('chr', '-', '0', '1'))!r})",
                f"cel.bind(x, {one}, x + {two})",
            )
        )

    def quantity(self) -> str:
        """Return a quantity."""
        capacity = f"{C}.{self._one(('memory', 'memory', 'cores', 'slots', 'nothing'))}"
        text = self._one(("40Gi", "80Gi", "1.5Gi", "100", "1e2", "500m", "46068Mi", "0", "-5", "1.5", "1610612736"))
        plain = self._one((capacity, f'quantity("{text}")'))
        return self._one((plain, plain, plain, f"{plain}.{self._one(('add', 'sub'))}({self._one((capacity, '5'))})"))
