"""Requests in Koordinator's words: amounts that are sums over the cards, exactly as its scheduler divides them."""

from typing import Any

import pytest

from fakes.dialects import demand_of, dialects_with, request_of
from fakes.objects import DIALECTS, GPU, MEMORY, a_pod_object
from gpuledger.formats.admission.webhook import AdmissionRules, filled_in
from gpuledger.formats.dialects.request import container_requests, pod_request
from gpuledger.formats.dialects.vocabulary import HAMI, KOORDINATOR, Dialects
from gpuledger.model.card import Amounts
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand

Json = dict[str, Any]

SHARED, CORE = "koordinator.sh/gpu.shared", "koordinator.sh/gpu-core"
BYTES, RATIO, BOTH = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu"
PROVIDER = "koordinator.sh/gpu-isolation-provider"
CARD = Amounts(80_000, 100, 10)


@pytest.mark.parametrize(
    ("limits", "demand"),
    [
        # The proposal's example: two cards, each with 2 GiB and half of the cores.
        ({BYTES: "4Gi", CORE: 100, SHARED: 2}, Demand(2, memory_mib=2048, cores=50)),
        # The examples of its documentation.
        ({SHARED: 1, CORE: 50, RATIO: 50}, Demand(1, memory_percent=50, cores=50)),
        ({SHARED: 2, CORE: 200, RATIO: 200}, Demand(2, exclusive=True)),
        ({CORE: 100, BYTES: "8Gi"}, Demand(1, memory_mib=8192, cores=100)),
        ({BOTH: 100}, Demand(1, exclusive=True)),
        ({BOTH: 50}, Demand(1, memory_percent=50, cores=50)),
        ({BOTH: 200}, Demand(2, exclusive=True)),
        ({SHARED: 4, BOTH: 100}, Demand(4, memory_percent=25, cores=25)),
        # One amount alone, and every form in which the API server writes a number.
        ({BYTES: "8Gi"}, Demand(1, memory_mib=8192)),
        ({BYTES: 8589934592}, Demand(1, memory_mib=8192)),
        ({BYTES: "8192Mi", SHARED: "1"}, Demand(1, memory_mib=8192)),
        ({BYTES: "1Mi"}, Demand(1, memory_mib=1)),
        ({BYTES: "16Gi", SHARED: 2}, Demand(2, memory_mib=8192)),
        ({RATIO: 100}, Demand(1, exclusive=True)),
        ({RATIO: "1k"}, Demand(10, exclusive=True)),
        ({RATIO: 25}, Demand(1, memory_percent=25)),
        ({RATIO: 100, SHARED: 2}, Demand(2, memory_percent=50)),
        ({RATIO: 100, CORE: 50}, Demand(1, memory_percent=100, cores=50)),
        # An amount of 0 is none at all.
        ({BYTES: "8Gi", RATIO: 0, CORE: 0}, Demand(1, memory_mib=8192)),
    ],
)
def test_amounts_are_divided_among_the_cards(limits: Json, demand: Demand) -> None:
    assert demand_of(limits) == demand


def test_nothing_is_asked_for_by_zero() -> None:
    assert pod_request(a_pod_object(limits={SHARED: 0, RATIO: 0, CORE: 0}), DIALECTS) is None


def test_a_whole_card_takes_all_of_it_and_a_part_exactly_its_part() -> None:
    assert demand_of({BOTH: 100}).amounts_on(CARD) == Amounts(80_000, 100, 1)
    assert demand_of({BOTH: 50}).amounts_on(CARD) == Amounts(40_000, 50, 1)
    assert demand_of({RATIO: 100, SHARED: 4}).amounts_on(CARD) == Amounts(20_000, 0, 1)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({CORE: 50}, f"container main asks for GPUs, but for none of their memory: add {BYTES} (bytes) or {RATIO}"),
        ({SHARED: 1}, f"container main asks for GPUs, but for none of their memory: add {BYTES} (bytes) or {RATIO}"),
        ({BYTES: "8Gi", RATIO: 10}, f"container main says {BYTES} and {RATIO}: keep one of them"),
        ({BOTH: 50, CORE: 50}, f"container main says {BOTH}, which stands for cores and memory, and {CORE}: keep one"),
        ({BOTH: 150}, f"container main, {BOTH}: 150 percent is more than 1 card has"),
        ({RATIO: 150}, f"container main, {RATIO}: 150 percent is more than 1 card has"),
        ({RATIO: 100, CORE: 200}, f"container main, {CORE}: 200 percent is more than 1 card has"),
        ({RATIO: 300, SHARED: 2}, f"container main, {RATIO}: 300 percent is more than 2 cards have"),
        ({RATIO: 100, SHARED: 3}, f"{RATIO}: 100 percent can't be divided among 3 cards: write a multiple of 3"),
        ({BYTES: "6Gi", CORE: 100, SHARED: 3}, f"{CORE}: 100 percent can't be divided among 3 cards"),
        ({BYTES: "8G"}, f"{BYTES}: 8G on 1 card is no whole number of MiB for each: write a multiple of 1Mi, such as"),
        ({BYTES: "1Gi", SHARED: 3}, f"{BYTES}: 1Gi on 3 cards is no whole number of MiB for each: write a multiple"),
        ({BYTES: 8192}, "8192 on 1 card is no whole number of MiB for each: write a multiple of 1Mi, such as 1Mi"),
        ({BYTES: "8E"}, "is more than any card has"),
        ({BYTES: "lots"}, f"{BYTES}: 'lots' is not an amount; it is a number of bytes, such as 8Gi"),
        ({BYTES: "-1Gi"}, "is not an amount"),
        ({RATIO: "8Gi"}, "8Gi has a unit of bytes; write a plain whole number (percent, summed up"),
        ({SHARED: 2000, RATIO: 100}, f"{SHARED}: 2000 is more than 1024; it is the number of different cards"),
        ({SHARED: 0, BYTES: "8Gi"}, f"on 0 GPUs: set {SHARED} to 1 or more, or drop the rest"),
        ({GPU: 1, BYTES: "8Gi"}, f"says {GPU} beside the words of koordinator, whose amounts are sums over its cards"),
        ({GPU: 1, SHARED: 1, RATIO: 5}, f"counts its cards twice, as {GPU} and as {SHARED}: keep one"),
        ({MEMORY: 5, BYTES: "8Gi"}, f"mixes the words of hami and koordinator ({MEMORY}, {BYTES}): keep one of them"),
    ],
)
def test_what_can_not_be_expressed_is_refused(limits: Json, sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        pod_request(a_pod_object(limits=limits), DIALECTS)
    assert sentence in str(error.value)


def test_cards_are_counted_by_the_name_that_the_container_writes() -> None:
    counted, uncounted = (
        request_of(a_pod_object(limits={SHARED: 1, RATIO: 5})),
        request_of(a_pod_object(limits={RATIO: 5})),
    )
    assert (counted.shape[0].resource, uncounted.shape[0].resource) == (SHARED, "")


def test_what_a_container_leaves_out_is_told() -> None:
    def left_out(limits: Json) -> frozenset[str]:
        (found,) = container_requests(a_pod_object(limits=limits), DIALECTS)
        assert found is not None
        assert found.vocabulary == "koordinator"
        return found.defaults

    assert left_out({BYTES: "8Gi"}) == {"gpus", "cores"}
    assert left_out({BYTES: "8Gi", SHARED: 1, CORE: 5}) == frozenset()
    assert left_out({BOTH: 200}) == {"gpus"}


def test_defaults_of_the_settings_are_not_for_these_words() -> None:
    dialects = dialects_with(default_cores=30, default_memory_mib=1000, default_gpus=2)
    assert demand_of({RATIO: 50}, dialects) == Demand(1, memory_percent=50)


def test_the_words_can_be_left_to_koordinators_own_scheduler() -> None:
    dialects = dialects_with(koordinator_names=False)
    assert pod_request(a_pod_object(limits={SHARED: 1, RATIO: 50}), dialects) is None
    assert not any(name.startswith("koordinator") for name in dialects.resources())


def test_the_names_are_among_those_that_kube_scheduler_sends_and_does_not_count() -> None:
    assert set(KOORDINATOR.resources) <= set(DIALECTS.resources())
    assert SHARED in DIALECTS.counts(of="nvidia")


@pytest.mark.parametrize(("limits", "cards"), [({BOTH: 200}, "2"), ({BYTES: "8Gi"}, "1"), ({RATIO: 30}, "1")])
def test_the_webhook_adds_the_number_of_cards_that_the_sums_stand_for(limits: Json, cards: str) -> None:
    changed = filled_in(a_pod_object(limits=limits), AdmissionRules(DIALECTS, ("gpuledger",)))
    resources = changed["spec"]["containers"][0]["resources"]
    assert resources["limits"][SHARED] == resources["requests"][SHARED] == cards
    before, after = (pod_request(pod, DIALECTS) for pod in (a_pod_object(limits=limits), changed))
    assert before is not None
    assert after is not None
    assert (after.shape[0].cards, after.shape[0].memory_mib) == (before.shape[0].cards, before.shape[0].memory_mib)


def test_the_isolation_label_chooses_cards_under_hami_core() -> None:
    def wanted(value: object) -> tuple[str, ...]:
        pod = a_pod_object(limits={RATIO: 50})
        pod["metadata"]["labels"] = {PROVIDER: value}
        return request_of(pod).shape[0].wanted.modes

    assert wanted("HAMi-core") == ("hami-core",)
    assert wanted("") == ()
    with pytest.raises(BadInput, match=f"label {PROVIDER}: 'other' is not known; write HAMi-core, or drop it"):
        wanted("other")


def test_names_that_a_vendor_shares_by_mistake_do_not_hide_the_sums() -> None:
    dialects = Dialects((HAMI, KOORDINATOR))
    assert set(dialects.in_bytes()) == {BYTES}
    assert set(dialects.hundreds()) == {RATIO, BOTH}
