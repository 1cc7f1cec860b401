"""How shares are kept apart: a pod's wish never takes away what protects others, and each way gets all it needs."""

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.agent.isolation.choice import (
    MPS_MEMORY,
    MPS_PIPES,
    GrantedCard,
    HamiCore,
    Installed,
    Isolation,
    MpsPipes,
    choose,
    driver_edits,
    driver_limits,
    missing,
    mps_edits,
    without_hami_core,
    without_vendors_limits,
)
from gpuledger.agent.isolation.hami_core import core_policy_of, hami_core_edits, opts_out
from gpuledger.formats.runtime.cdi import CardLimit
from gpuledger.formats.runtime.mps import SEVERAL

ALL = Installed(hami_core_directory="/hami", mps_directory="/mps", why_no_driver_limits="")
BARE = Installed()

SHARED = GrantedCard("GPU-0", 0, "nvidia", "", 4_000, 30, False)
ALONE = replace(SHARED, exclusive=True)
MIG = replace(SHARED, uuid="MIG-0", mode="mig")


@pytest.mark.parametrize("own", list(Isolation))
@pytest.mark.parametrize("cards", [[SHARED], [ALONE], [ALONE, SHARED]])
def test_without_a_wish_the_node_decides(own: Isolation, cards: list[GrantedCard]) -> None:
    choice = choose(cards, own, "", ALL)
    assert (choice.isolation, choice.why_not_as_wished) == (own, "")


@pytest.mark.parametrize(
    ("own", "wish", "cards", "installed", "chosen", "why_not"),
    [
        # The same as the node's: nothing to decide.
        ("mps", "mps", [SHARED], ALL, "mps", ""),
        ("none", "none", [SHARED], BARE, "none", ""),
        ("hami-core", "hami-core", [SHARED], ALL, "hami-core", ""),
        # Nothing is enforced: a pod may bind itself, if the node can.
        ("none", "mps", [SHARED], ALL, "mps", ""),
        ("none", "hami-core", [SHARED], ALL, "hami-core", ""),
        ("none", "mps", [SHARED], BARE, "none", "not installed"),
        ("none", "hami-core", [ALONE], BARE, "none", "not installed"),
        ("none", "driver", [SHARED], ALL, "driver", ""),
        ("none", "driver", [SHARED], BARE, "none", "not installed"),
        ("driver", "none", [SHARED], ALL, "driver", "alone"),
        ("driver", "mps", [SHARED], ALL, "driver", "enforces limits by driver"),
        ("driver", "none", [ALONE], ALL, "none", ""),
        ("driver", "driver", [MIG], ALL, "mig", "can't be chosen"),
        # Something is enforced: only who is alone may leave it.
        ("mps", "none", [SHARED], ALL, "mps", "alone"),
        ("mps", "none", [ALONE, SHARED], ALL, "mps", "alone"),
        ("mps", "none", [ALONE], ALL, "none", ""),
        ("hami-core", "none", [ALONE, ALONE], ALL, "none", ""),
        ("mps", "hami-core", [SHARED], ALL, "mps", "enforces limits by mps"),
        ("mps", "hami-core", [ALONE, SHARED], ALL, "mps", "enforces limits by mps"),
        ("mps", "hami-core", [ALONE], ALL, "hami-core", ""),
        ("hami-core", "mps", [ALONE], ALL, "mps", ""),
        ("hami-core", "mps", [ALONE], Installed("/hami"), "hami-core", "not installed"),
        # A part of a card that the hardware keeps apart stays that.
        ("none", "none", [MIG], ALL, "mig", "can't be chosen"),
        ("mps", "none", [replace(MIG, exclusive=True)], ALL, "mig", "can't be chosen"),
        ("mps", "mps", [MIG], ALL, "mig", "can't be chosen"),
        ("none", "mig", [MIG], ALL, "mig", ""),
        ("none", "mig", [SHARED], ALL, "none", "can't be chosen"),
        # Beside a MIG device, a shared card needs its limits all the same.
        ("mps", "", [MIG, SHARED], ALL, "mps", ""),
        ("mps", "none", [MIG, SHARED], ALL, "mps", "alone"),
        # What nobody knows.
        ("mps", "MPS", [ALONE], ALL, "mps", "can't be chosen"),
        ("none", "magic" * 100, [SHARED], ALL, "none", "can't be chosen"),
    ],
)
def test_a_wish_is_followed_where_it_can_harm_nobody(
    own: str, wish: str, cards: list[GrantedCard], installed: Installed, chosen: str, why_not: str
) -> None:
    choice = choose(cards, Isolation(own), wish, installed)
    assert choice.isolation == chosen
    assert why_not in choice.why_not_as_wished
    assert bool(why_not) == bool(choice.why_not_as_wished)
    assert len(choice.why_not_as_wished) < 100, "a pod must not fill the log"


@pytest.mark.parametrize("own", [Isolation.MPS, Isolation.HAMI_CORE, Isolation.DRIVER])
@pytest.mark.parametrize("wish", ["none", "mps", "hami-core", "driver", "mig", "x", ""])
@pytest.mark.parametrize("installed", [ALL, BARE, Installed("/hami"), Installed("", "/mps")])
def test_who_shares_a_card_of_a_node_that_enforces_limits_is_never_without(
    own: Isolation, wish: str, installed: Installed
) -> None:
    assert choose([ALONE, SHARED], own, wish, installed).isolation is own


def test_a_node_that_lacks_what_its_setting_needs_says_so() -> None:
    assert "mps" in missing(Isolation.MPS, BARE)
    assert "hami-core" in missing(Isolation.HAMI_CORE, Installed(mps_directory="/mps"))
    assert missing(Isolation.MPS, ALL) == missing(Isolation.HAMI_CORE, ALL) == ""
    assert missing(Isolation.DRIVER, ALL) == ""
    assert missing(Isolation.DRIVER, Installed(why_no_driver_limits="615 is needed")).endswith(": 615 is needed")
    assert missing(Isolation.NONE, BARE) == missing(Isolation.MIG, BARE) == ""


def env_of(edits: dict[str, Any]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in edits["env"])


def mounts_of(edits: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["containerPath"]: (each["hostPath"], each["options"][0]) for each in edits["mounts"]}


def mps(cards: list[GrantedCard], installed: Installed = ALL) -> dict[str, Any]:
    return mps_edits(cards, installed.mps_directory, installed.mps_pipes)


def hami_core(
    cards: list[GrantedCard], priority: str = "", own_directory: str = "/own", node: HamiCore = ALL.hami_core
) -> dict[str, Any]:
    return hami_core_edits(cards, "/hami", own_directory, priority, node)


def test_the_driver_limits_each_card_to_its_share_and_keeps_it_where_others_may_borrow() -> None:
    cards = [SHARED, replace(SHARED, uuid="GPU-1", memory_mib=500), replace(MIG, uuid="MIG-1"), ALONE]
    assert driver_limits(cards) == (
        CardLimit("GPU-0", 0, 4_000),
        CardLimit("GPU-1", 0, 500),
        CardLimit("GPU-0", 0, 4_000),
    )
    borrows = replace(SHARED, uuid="GPU-1", memory_mib=500, burst_mib=9_000)
    assert driver_limits([SHARED, borrows], guarantees=True) == (
        CardLimit("GPU-0", 4_000, 4_000),
        CardLimit("GPU-1", 500, 9_000),
    )


def test_the_drivers_hook_is_a_script_of_the_nodes_shell_with_a_time_limit() -> None:
    directory = "/var/lib/gpuledger/limits"
    edits = driver_edits("slot-1-a", directory, [])
    assert edits.keys() == {"hooks"}
    (hook,) = edits["hooks"]
    assert hook == {
        "hookName": "createRuntime",
        "path": "/bin/sh",
        "args": ["/bin/sh", f"{directory}/limit-memory.sh", "slot-1-a", directory],
        "timeout": 10,
    }


def test_what_a_user_writes_for_the_toolkits_hook_does_not_count() -> None:
    limits = [CardLimit("GPU-0", 500, 4_000), CardLimit("GPU-1", 0, 2_000)]
    assert env_of(driver_edits("slot-1-a", "/limits", limits)) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "2000",
    }
    vendors = {"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits"]}
    others = [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}, {"path": "/x"}]
    assert without_vendors_limits({"hooks": [vendors, *others], "env": ["A=1"]}) == {"hooks": others, "env": ["A=1"]}
    assert without_vendors_limits({"env": ["A=1"]}) == {"env": ["A=1"]}


def test_mps_limits_memory_for_each_card_by_its_position_in_the_container() -> None:
    cards = [replace(SHARED, index=3), replace(SHARED, uuid="GPU-7", index=7, memory_mib=500)]
    edits = mps(cards)
    assert env_of(edits) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",  # noqa: S108 - where CUDA looks
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4000M,1=500M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert mounts_of(edits) == {MPS_PIPES: ("/mps/pipe", "ro"), MPS_MEMORY: ("/mps/shm", "rw")}


OWN = Installed(
    mps_directory="/mps",
    mps_pipes=MpsPipes({"GPU-0": "/mps/0", SEVERAL: "/mps/several"}, {"GPU-7": "it has ended"}, "nothing is known"),
)


def test_a_container_gets_the_daemon_of_its_card_or_that_of_containers_with_several() -> None:
    other = replace(SHARED, uuid="GPU-7")
    assert mounts_of(mps([SHARED], OWN))[MPS_PIPES] == ("/mps/0", "ro")
    assert mounts_of(mps([SHARED, other], OWN))[MPS_PIPES] == ("/mps/several", "ro")
    assert mounts_of(mps([SHARED], OWN))[MPS_MEMORY] == ("/mps/shm", "rw")


def test_a_card_whose_daemon_takes_no_programs_is_missing_and_others_are_not() -> None:
    assert missing(Isolation.MPS, OWN, [SHARED]) == ""
    assert missing(Isolation.MPS, OWN, [replace(SHARED, uuid="GPU-7")]) == (
        "the MPS daemon of GPU GPU-7 takes no programs: it has ended"
    )
    assert "nothing is known" in missing(Isolation.MPS, OWN, [replace(SHARED, uuid="GPU-8")])
    several = Installed(mps_directory="/mps", mps_pipes=MpsPipes({"GPU-0": "/mps/0"}))
    assert "containers with several GPUs takes no programs: there is none" in missing(
        Isolation.MPS, several, [SHARED, SHARED]
    )


def test_mps_leaves_a_pod_that_is_alone_all_of_its_cards() -> None:
    names = env_of(mps([replace(ALONE, cores=100)]))
    assert not {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} & set(names)


@pytest.mark.parametrize(("cores", "percentage"), [((0,), None), ((100,), None), ((40, 20), "20"), ((0, 20), "20")])
def test_mps_has_one_share_of_the_compute_for_all_cards_the_least(
    cores: tuple[int, ...], percentage: str | None
) -> None:
    edits = mps([replace(SHARED, cores=each) for each in cores])
    assert env_of(edits).get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == percentage


# HAMi-core.

TWO = [SHARED, replace(SHARED, uuid="GPU-7", index=7, memory_mib=500, cores=10)]


def test_hami_core_gets_its_environment_and_its_mounts() -> None:
    edits = hami_core(TWO, "0", "/hami/containers/a_main")
    assert env_of(edits) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "500m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_SM_LIMIT_1": "10",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage.cache",
        "CUDA_REDIRECT": "/usr/local/vgpu/libvgpu.so",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_TASK_PRIORITY": "0",
        "GPU_CORE_UTILIZATION_POLICY": "default",
    }
    assert mounts_of(edits) == {
        "/usr/local/vgpu/usage.cache": ("/hami/containers/a_main/usage.cache", "rw"),
        "/usr/local/vgpu/libvgpu.so": ("/hami/libvgpu.so", "ro"),
        "/tmp/vgpulock": ("tmpfs", "size=64k"),  # noqa: S108 - where HAMi-core looks
        "/etc/ld.so.preload": ("/hami/ld.so.preload", "ro"),
    }


def test_hami_core_from_an_image_is_mounted_from_its_version() -> None:
    node = HamiCore(library_directory="/hami/versions/0123456789abcdef")
    edits = hami_core([SHARED], "", "/hami/containers/a_main", node)
    mounts = mounts_of(edits)
    assert mounts["/usr/local/vgpu/libvgpu.so"] == ("/hami/versions/0123456789abcdef/libvgpu.so", "ro")
    assert mounts["/etc/ld.so.preload"] == ("/hami/versions/0123456789abcdef/ld.so.preload", "ro")
    assert mounts["/usr/local/vgpu/usage.cache"][0].startswith("/hami/containers/")


@pytest.mark.parametrize(
    ("cores", "limits_of_cores"),
    [((0,), ("100", "100")), ((0, 30), ("100", "100", "30")), ((30, 0), ("30", "30", "100")), ((100,), ("100", "100"))],
)
def test_a_card_without_promised_cores_does_not_get_another_ones_limit(
    cores: tuple[int, ...], limits_of_cores: tuple[str, ...]
) -> None:
    env = env_of(hami_core([replace(SHARED, cores=each) for each in cores]))
    names = ["CUDA_DEVICE_SM_LIMIT", *(f"CUDA_DEVICE_SM_LIMIT_{position}" for position in range(len(cores)))]
    assert tuple(env[name] for name in names) == limits_of_cores


@pytest.mark.parametrize(("cores", "limit"), [(0, "99"), (100, "99"), (30, "30")])
def test_a_task_of_low_priority_has_a_limit_of_cores_without_which_it_would_not_pause(cores: int, limit: str) -> None:
    env = env_of(hami_core([replace(SHARED, cores=cores)], "1"))
    assert (env["CUDA_DEVICE_SM_LIMIT_0"], env["CUDA_TASK_PRIORITY"]) == (limit, "1")


@pytest.mark.parametrize("priority", ["", "2", "high", "0\n", "-1"])
def test_a_priority_that_hami_core_does_not_know_is_its_default(priority: str) -> None:
    env = env_of(hami_core([replace(SHARED, cores=0)], priority))
    assert (env["CUDA_DEVICE_SM_LIMIT_0"], env["CUDA_TASK_PRIORITY"]) == ("100", "1")


def test_what_the_node_says_of_hami_core_reaches_the_container() -> None:
    node = HamiCore(core_policy="force", oversubscribed=True, log_level="0")
    env = env_of(hami_core([SHARED], node=node))
    assert env["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert (env["CUDA_OVERSUBSCRIBE"], env["LIBCUDA_LOG_LEVEL"]) == ("true", "0")
    plain = env_of(hami_core([SHARED]))
    assert not {"CUDA_OVERSUBSCRIBE", "LIBCUDA_LOG_LEVEL"} & plain.keys()


@pytest.mark.parametrize(
    ("of_node", "wish", "cards", "policy"),
    [
        ("default", "", [SHARED], "default"),
        ("default", "force", [SHARED], "force"),
        ("default", "FORCE", [SHARED], "force"),
        ("default", "disable", [SHARED], "default"),
        ("default", "disable", [ALONE, SHARED], "default"),
        ("default", "disable", [ALONE, ALONE], "disable"),
        ("force", "default", [SHARED], "force"),
        ("force", "default", [ALONE], "default"),
        ("disable", "default", [SHARED], "default"),
        ("disable", "force", [SHARED], "force"),
        ("force", "nothing", [ALONE], "force"),
        ("default", "disable\n", [ALONE], "default"),
    ],
)
def test_a_user_may_be_limited_more_strictly_and_less_only_alone(
    of_node: str, wish: str, cards: list[GrantedCard], policy: str
) -> None:
    assert core_policy_of(cards, of_node, wish) == policy


@pytest.mark.parametrize("said", ["true", "True", "TRUE", "t", "T", "1"])
def test_hamis_word_for_no_limits_is_understood_as_hami_does(said: str) -> None:
    assert opts_out({"CUDA_DISABLE_CONTROL": said, "A": "b"})


@pytest.mark.parametrize("said", ["", "false", "0", "yes", "tRUE", " true"])
def test_what_hami_does_not_take_for_that_word_is_none(said: str) -> None:
    assert not opts_out({"CUDA_DISABLE_CONTROL": said})
    assert not opts_out({})


@pytest.mark.parametrize(
    ("own", "cards", "chosen"),
    [
        ("hami-core", [SHARED], "hami-core"),
        ("hami-core", [ALONE, SHARED], "hami-core"),
        ("hami-core", [ALONE], "none"),
        ("mps", [ALONE], "mps"),
        ("none", [SHARED], "none"),
    ],
)
def test_who_wishes_no_hami_core_has_it_beside_others_all_the_same(
    own: str, cards: list[GrantedCard], chosen: str
) -> None:
    choice = without_hami_core(choose(cards, Isolation(own), "", ALL), cards, Isolation(own), ALL)
    assert choice.isolation == chosen


def test_who_has_wished_for_hami_core_where_nothing_is_enforced_may_leave_it() -> None:
    choice = choose([SHARED], Isolation.NONE, "hami-core", ALL)
    assert choice.isolation is Isolation.HAMI_CORE
    assert without_hami_core(choice, [SHARED], Isolation.NONE, ALL).isolation is Isolation.NONE


def test_a_node_whose_library_was_refused_says_why() -> None:
    installed = Installed(why_no_hami_core="it is not whole")
    assert missing(Isolation.HAMI_CORE, installed).endswith("which it does not have: it is not whole")
    assert missing(Isolation.NONE, installed) == ""
