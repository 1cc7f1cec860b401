"""Whatever users write into their claims, a pod's request comes of it or a sentence, and that in a moment."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from any_expressions import expressions
from fakes.claims import a_resource_claim
from fakes.objects import DIALECTS, SHARE, a_container, a_pod_object
from gpuledger.formats.custom_resource.stored_card import API_VERSION
from gpuledger.formats.dialects.request import pod_request
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS, DRIVER, ListedClaims
from gpuledger.formats.resource_claims.demands import KEYS
from gpuledger.model.errors import BadInput
from gpuledger.model.request import PodRequest

Json = dict[str, Any]

WORDS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
QUANTITIES = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,3})?([KMGTPE]i|[kMGTPEmun]|[eE][+-]?[0-9]{1,2})?", fullmatch=True)
EXPRESSIONS = (
    st.text(max_size=20)
    | st.sampled_from(
        [
            "true",
            f'device.driver == "{DRIVER}"',
            f'device.attributes["{DRIVER}"].model.contains("A100")',
            f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
            'device.attributes["nic.example.com"].speed > 3',
            "device.allowMultipleAllocations",
        ]
    )
    | expressions()
)
SELECTORS = st.lists(st.fixed_dictionaries({"cel": st.fixed_dictionaries({"expression": EXPRESSIONS})}), max_size=2)
CLASSES = st.sampled_from([DEVICE_CLASS, "big", "nic", "gone"])
WISHES = st.fixed_dictionaries(
    {"deviceClassName": CLASSES},
    optional={
        "selectors": SELECTORS,
        "allocationMode": st.sampled_from(["ExactCount", "All", "Some"]),
        "count": st.integers(1, 2**63 - 1),
        "capacity": st.fixed_dictionaries(
            {"requests": st.dictionaries(st.sampled_from(["memory", "cores", "slots", "x/y"]), QUANTITIES, max_size=3)}
        ),
        "adminAccess": st.booleans(),
        "tolerations": st.just([{"operator": "Exists"}]),
    },
)
ALTERNATIVES = st.lists(
    st.builds(lambda name, wish: {"name": name, **wish}, WORDS, WISHES),
    min_size=1,
    max_size=8,
    unique_by=lambda each: each["name"],
)
REQUESTS = st.lists(
    st.builds(lambda name, wish: {"name": name, "exactly": wish}, WORDS, WISHES)
    | st.builds(lambda name, first: {"name": name, "firstAvailable": first}, WORDS, ALTERNATIVES),
    max_size=4,
    unique_by=lambda each: each["name"],
)
NAMES = st.lists(WORDS | st.builds("{}/{}".format, WORDS, WORDS), max_size=2)
CONSTRAINTS = st.lists(
    st.fixed_dictionaries(
        {"requests": NAMES},
        optional={
            key: st.sampled_from([f"{DRIVER}/uuid", "resource.kubernetes.io/pcieRoot", "x/y"])
            for key in ("matchAttribute", "distinctAttribute")
        },
    ),
    max_size=3,
)
SHARES = st.dictionaries(st.sampled_from(KEYS), VALUES | st.integers(1, 100) | st.lists(st.just("x")), max_size=3)
CONFIG = st.lists(
    st.builds(
        lambda driver, parameters, requests: {
            "opaque": {"driver": driver, "parameters": parameters},
            "requests": requests,
        },
        st.sampled_from([DRIVER, "nic.example.com"]),
        st.dictionaries(st.text(max_size=8), VALUES, max_size=3)
        | SHARES.map(lambda fields: {"apiVersion": API_VERSION, "kind": "Share", **fields}),
        NAMES,
    ),
    max_size=3,
)
DEVICES = st.fixed_dictionaries({}, optional={"requests": REQUESTS, "constraints": CONSTRAINTS, "config": CONFIG})
USES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["c0", "c1", "c2"])}, optional={"request": WORDS}), max_size=3
)


@st.composite
def pods_with_claims(draw: st.DrawFn) -> tuple[Json, list[Json], dict[str, str]]:
    """Return a pod, the claims there are, and who holds them."""
    pod = a_pod_object("a", {}, node_name=draw(st.sampled_from(["", "node-a"])))
    limits = draw(st.sampled_from([{}, SHARE]))
    pod["spec"]["containers"] = [a_container("main", limits), a_container("second", {})]
    for container in pod["spec"]["containers"]:
        container["resources"]["claims"] = draw(USES)
    claims, listed, holders = [], [], {}
    for number in range(draw(st.integers(0, 3))):
        node = draw(st.sampled_from(["", "node-a", "node-b"]))
        owner = draw(st.sampled_from(["", "a", "b"]))
        claim = a_resource_claim(f"r{number}", node, ["GPU-1"] if node else [], ["b"] if node else [], owner)
        claims.append({**claim, "spec": {"devices": draw(DEVICES)}})
        listed.append({"name": f"c{number}", "resourceClaimName": f"r{number}"})
        if node and draw(st.booleans()):
            holders[f"claim-r{number}"] = "uid-b"
    pod["spec"]["resourceClaims"] = listed
    return pod, claims, holders


@given(pods_with_claims(), SELECTORS, CONFIG)
def test_a_pod_with_claims_is_read_or_refused(
    scene: tuple[Json, list[Json], dict[str, str]], selectors: list[Json], config: list[Json]
) -> None:
    pod, claims, holders = scene
    of_driver = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    classes = [
        {"metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [of_driver]}},
        {"metadata": {"name": "big"}, "spec": {"selectors": [of_driver, *selectors], "config": config}},
        {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}},
    ]
    said = ""
    found: PodRequest | None = None
    try:
        found = pod_request(pod, DIALECTS, ListedClaims(claims, (), classes, holders))
    except BadInput as error:
        said = str(error)
    assert len(said) < 1_000
    if found is not None:
        assert all(len(each.names) == len(each.shape) == len({*each.names}) for each in found.variants)
