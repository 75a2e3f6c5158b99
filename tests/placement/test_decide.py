"""The decision over a snapshot: what is chosen, what is refused, and what a refusal says."""

from dataclasses import replace
from typing import Any

import pytest

from leasing.compat import ImageNeeds
from scheduler.placement import (
    Ask,
    Busy,
    DeviceView,
    HostView,
    Placement,
    Refusal,
    Want,
    decide,
    units_mask,
)

NOW = 1_800_000_000
HOUR = 3_600
MIG = {
    "1g.10gb": tuple((start, 1) for start in range(7)),
    "2g.20gb": ((0, 2), (2, 2), (4, 2)),
    "3g.40gb": ((0, 4), (4, 4)),
    "7g.80gb": ((0, 8),),
}


def busy(end_s: int | None, units: tuple[int, int] = (0, 8), mode: Any = "whole", who: str = "other") -> Busy:
    return Busy(units_mask(*units), mode, who, NOW - HOUR, end_s)


def host(key: str, gpus: int = 8, taken: dict[int, tuple[Busy, ...]] | None = None, **changes: Any) -> HostView:
    devices = tuple(
        DeviceView(
            f"{key}-{i}",
            (taken or {}).get(i, ()),
            mig_placements=MIG,
            fractions=("0.5", "0.25", "0.125"),
            nvlink_clique=changes.get("cliques", {}).get(i),
        )
        for i in range(gpus)
    )
    changes.pop("cliques", None)
    plain = HostView(
        key=key,
        region="cn-north",
        model="A100_80G",
        memory_gib=80,
        devices=devices,
        owner="owner",
        cpu_milli=12_000 * gpus,
        ram_mib=98_304 * gpus,
        disk_mib=500_000 * gpus,
        cpu_milli_per_gpu=12_000,
        ram_mib_per_gpu=98_304,
        disk_mib_per_gpu=500_000,
        price_micros=12_000_000,
        driver_version="550.54.15",
        cuda_version="12.4",
        compute_capability="8.0",
    )
    return replace(plain, **changes)


def ask(*options: Want, **changes: Any) -> Ask:
    return Ask(options=options, organization="tenant", now_s=NOW, start_s=NOW, **changes)


def placed(hosts: list[HostView], wanted: Ask) -> Placement:
    answer = decide(hosts, wanted)
    assert isinstance(answer, Placement), answer
    return answer


def refused(hosts: list[HostView], wanted: Ask) -> Refusal:
    answer = decide(hosts, wanted)
    assert isinstance(answer, Refusal), answer
    return answer


def reason_counts(refusal: Refusal) -> dict[str, int]:
    return {reason.code: reason.hosts for reason in refusal.reasons}


def all_busy(gpus: int, end_s: int | None) -> dict[int, tuple[Busy, ...]]:
    return {i: (busy(end_s),) for i in range(gpus)}


def test_four_gpus_of_one_request_lie_in_one_machine() -> None:
    split = [
        host("a", taken={i: (busy(None),) for i in range(5)}),
        host("b", taken={i: (busy(None),) for i in range(4)}),
    ]

    answer = placed(split, ask(Want("A100_80G", 4)))

    assert [m.host for m in answer.members] == ["b"]
    assert set(answer.members[0].device_keys) == {"b-4", "b-5", "b-6", "b-7"}
    assert answer.members[0].cpu_milli == 48_000


def test_small_requests_go_to_started_hosts_so_that_empty_ones_stay_whole() -> None:
    pool = [host("empty"), host("started", taken={0: (busy(None),)})]

    assert placed(pool, ask(Want("A100_80G"))).members[0].host == "started"


def test_the_first_alternative_that_is_free_now_wins() -> None:
    pool = [host("a", taken=all_busy(8, NOW + HOUR)), host("h", model="H100_80G")]

    answer = placed(pool, ask(Want("A100_80G", 4), Want("H100_80G", 2)))

    assert answer.option_index == 1
    assert answer.members[0].host == "h"


def test_a_gang_is_whole_or_absent() -> None:
    pool = [host("a"), host("b"), host("c", taken={0: (busy(None),)})]

    assert {m.host for m in placed(pool, ask(Want("A100_80G", 8, nodes=2))).members} == {"a", "b"}
    refusal = refused(pool, ask(Want("A100_80G", 8, nodes=3)))
    assert reason_counts(refusal) == {"busy": 1, "gang": 2}
    gang = refusal.reasons[-1]
    assert (gang.need, gang.have) == (3, 2)


def test_a_gang_stays_in_one_region_and_in_one_zone_if_asked() -> None:
    pool = [host("a", zone="z1"), host("b", zone="z2"), host("c", region="eu-west", zone="z3")]

    assert {m.host for m in placed(pool, ask(Want("A100_80G", 8, nodes=2))).members} == {"a", "b"}
    assert reason_counts(refused(pool, ask(Want("A100_80G", 8, nodes=2), same_zone=True))) == {"gang": 3}
    assert reason_counts(refused(pool, ask(Want("A100_80G", 8, nodes=3)))) == {"gang": 3}


def test_a_small_gang_takes_the_zone_with_the_fewest_hosts_to_spare() -> None:
    pool = [
        host("a1", zone="a"),
        host("a2", zone="a"),
        host("a3", zone="a"),
        host("b1", zone="b"),
        host("b2", zone="b"),
    ]

    answer = placed(pool, ask(Want("A100_80G", 8, nodes=2), same_zone=True))

    assert {m.host for m in answer.members} == {"b1", "b2"}


def test_a_common_fabric_needs_hosts_that_have_one() -> None:
    pool = [host("a"), host("b"), host("c", fabric="ib-1"), host("d", fabric="ib-1")]

    answer = placed(pool, ask(Want("A100_80G", 8, nodes=2), same_fabric=True))

    assert {m.host for m in answer.members} == {"c", "d"}


def test_the_price_cap_is_a_bound_and_a_lower_price_comes_before_the_score() -> None:
    pool = [host("dear", taken={0: (busy(None),)}, price_micros=20_000_000), host("cheap")]

    assert placed(pool, ask(Want("A100_80G"))).members[0].host == "cheap"
    refusal = refused(pool, ask(Want("A100_80G"), max_price_micros=11_999_999))
    assert reason_counts(refusal) == {"price": 2}
    assert refusal.reasons[0].have == 12_000_000
    cap = next(r for r in refusal.relaxations if r.constraint == "max_price_micros")
    assert cap.value == 12_000_000


def test_a_refusal_counts_each_host_once_and_names_what_would_work() -> None:
    pool = [host(f"b{i}", taken=all_busy(8, NOW + (i + 1) * HOUR)) for i in range(5)]
    pool += [host(f"o{i}", driver_version="535.161.08") for i in range(2)]
    pool += [host("small", model="A100_40G", memory_gib=40)]

    refusal = refused(pool, ask(Want("A100_80G", 4), min_driver="550"))

    assert reason_counts(refusal) == {"driver": 2, "busy": 5}
    assert refusal.hosts_with_model == 7
    assert refusal.earliest_s == NOW + HOUR
    assert ("model", "A100_40G") in [(r.constraint, r.value) for r in refusal.relaxations]
    assert ("min_driver", "535.161.08") in [(r.constraint, r.value) for r in refusal.relaxations]
    assert refusal.text() == (
        "7 with the model: 2 below driver 550 (best 535.161.08); 5 busy (0 of 4 free), first free 2027-01-15 09:00 UTC."
        " With driver 535.161.08, A100_80G x4 is free now. A100_40G x4 is free now."
    )
    assert "7 台主机" in refusal.text("zh")


def test_a_model_nobody_has_is_said_so() -> None:
    refusal = refused([host("a")], ask(Want("B200_180G")))

    assert refusal.hosts_with_model == 0
    assert refusal.text() == "No host offers B200_180G."


def test_an_open_ended_lease_never_sits_on_a_device_with_a_future_range() -> None:
    future = Busy(units_mask(0, 8), "whole", "other", NOW + 10 * HOUR, NOW + 20 * HOUR)
    pool = [host("a", 1, taken={0: (future,)})]

    refusal = refused(pool, ask(Want("A100_80G")))

    assert refusal.earliest_s == NOW + 20 * HOUR
    assert placed(pool, ask(Want("A100_80G"), until_s=NOW + 10 * HOUR)).members[0].host == "a"


def test_earliest_is_unknown_where_an_end_is_open() -> None:
    refusal = refused([host("a", 1, taken={0: (busy(None),)})], ask(Want("A100_80G")))

    assert refusal.earliest_s is None


def test_earliest_of_a_gang_is_when_enough_hosts_are_free_together() -> None:
    pool = [host("a", 1, taken={0: (busy(NOW + HOUR),)}), host("b", 1, taken={0: (busy(NOW + 3 * HOUR),)})]

    assert refused(pool, ask(Want("A100_80G", 1, nodes=2))).earliest_s == NOW + 3 * HOUR


def test_fractions_tile_and_share_a_device_with_their_own_organization_only() -> None:
    mine = busy(None, (0, 4), "shared", "tenant")
    theirs = busy(None, (0, 4), "shared", "other")
    pool = [host("a", 3, taken={0: (theirs,), 1: (mine,)})]

    seat = placed(pool, ask(Want("A100_80G", slice="0.25"))).members[0].seats[0]

    assert (seat.device, seat.start, seat.stop, seat.mode) == ("a-1", 4, 6, "shared")


def test_a_quarter_fills_the_smaller_hole_and_leaves_the_half() -> None:
    mine = busy(None, (0, 2), "shared", "tenant")
    seat = placed([host("a", 1, taken={0: (mine,)})], ask(Want("A100_80G", slice="0.25"))).members[0].seats[0]

    assert (seat.start, seat.stop) == (2, 4)


def test_mig_slices_lie_at_legal_starts_and_the_first_small_one_goes_to_six() -> None:
    seat = placed([host("a", 1)], ask(Want("A100_80G", slice="1g.10gb"))).members[0].seats[0]
    assert (seat.start, seat.stop, seat.mode) == (6, 7, "mig")

    half = busy(None, (0, 1), "mig")
    seat = placed([host("a", 1, taken={0: (half,)})], ask(Want("A100_80G", slice="3g.40gb"))).members[0].seats[0]
    assert (seat.start, seat.stop) == (4, 8)


def test_a_device_has_one_mode_at_a_time() -> None:
    pool = [host("a", 1, taken={0: (busy(NOW + HOUR, (0, 1), "mig"),)})]

    for part in (None, "0.5"):
        assert reason_counts(refused(pool, ask(Want("A100_80G", slice=part)))) == {"busy": 1}


def test_seven_small_slices_and_not_eight_fit_one_device() -> None:
    assert len(placed([host("a", 1)], ask(Want("A100_80G", 7, slice="1g.10gb"))).members[0].seats) == 7
    assert reason_counts(refused([host("a", 1)], ask(Want("A100_80G", 8, slice="1g.10gb")))) == {"devices": 1}


def test_nvlink_required_takes_devices_of_one_clique() -> None:
    cliques = {0: "x", 1: "x", 2: "y", 3: "y"}
    pool = [host("a", 4, taken={0: (busy(None),)}, cliques=cliques)]

    answer = placed(pool, ask(Want("A100_80G", 2), nvlink="required"))

    assert set(answer.members[0].device_keys) == {"a-2", "a-3"}
    assert placed(pool, ask(Want("A100_80G", 1))).members[0].device_keys == ("a-1",)
    assert reason_counts(refused(pool, ask(Want("A100_80G", 3), nvlink="required"))) == {"nvlink": 1}


def test_nvlink_wanted_prefers_a_host_that_has_it_and_takes_another_if_none_does() -> None:
    joined = host("joined", 4, cliques=dict.fromkeys(range(4), "x"))
    loose = host("loose", 2)

    assert placed([joined, loose], ask(Want("A100_80G", 2), nvlink="wanted")).members[0].host == "joined"
    assert placed([loose], ask(Want("A100_80G", 2), nvlink="wanted")).members[0].host == "loose"


def test_a_whole_machine_is_an_empty_host_of_that_size_with_all_its_resources() -> None:
    pool = [host("a", taken={0: (busy(NOW + HOUR),)}), host("b"), host("c", 4)]

    member = placed(pool, ask(Want("A100_80G", 8), whole_machine=True)).members[0]

    assert (member.host, member.cpu_milli, len(member.seats)) == ("b", 96_000, 8)


def test_private_hosts_exist_for_their_owner_only_and_the_owner_comes_first() -> None:
    pool = [host("market", price_micros=1), host("own", owner="tenant", access="private")]
    stranger = replace(ask(Want("A100_80G", 8, nodes=2)), organization="stranger")

    assert placed(pool, ask(Want("A100_80G"))).members[0].host == "own"
    assert refused(pool, stranger).hosts_with_model == 1


def test_a_market_lease_on_a_host_shared_when_idle_is_reclaimable_and_says_so() -> None:
    pool = [host("a", access="shared_when_idle")]

    assert placed(pool, ask(Want("A100_80G"))).members[0].reclaimable
    assert not placed(pool, replace(ask(Want("A100_80G")), organization="owner")).members[0].reclaimable
    assert placed([*pool, host("b")], ask(Want("A100_80G"))).members[0].host == "b"


@pytest.mark.parametrize(
    ("changes", "constraint", "code"),
    [
        ({"driver_version": "535.1"}, {"min_driver": "550.54"}, "driver"),
        ({"cuda_version": "12.2"}, {"min_cuda": "12.4"}, "cuda"),
        ({"compute_capability": "7.5"}, {"min_compute_capability": "8.0"}, "compute_capability"),
        ({"vendor": "amd"}, {"vendor": "nvidia"}, "vendor"),
        ({"region": "eu-west"}, {"regions": frozenset({"cn-north"})}, "region"),
        ({"reliability_bp": 9_000}, {"min_reliability_bp": 9_500}, "reliability"),
        ({"tier": "verified"}, {"min_tier": "certified"}, "tier"),
        ({"owner": "foe"}, {"exclude_owners": frozenset({"foe"})}, "excluded"),
        ({"out_of_service": "draining"}, {}, "out_of_service"),
        ({"price_micros": None}, {}, "not_for_sale"),
        ({"cpu_milli": 8_000}, {}, "cpu"),
        ({}, {"min_ram_mib": 10_000_000}, "ram"),
        ({}, {"min_disk_mib": 10_000_000}, "disk"),
    ],
)
def test_each_constraint_refuses_the_host_that_fails_it(changes: Any, constraint: Any, code: str) -> None:
    assert reason_counts(refused([host("a", **changes)], ask(Want("A100_80G"), **constraint))) == {code: 1}


IMAGE = ImageNeeds(vendor="nvidia", cpu="", cuda="12.4")


@pytest.mark.parametrize(
    ("changes", "image", "code", "need"),
    [
        ({"vendor": "amd", "compute_capability": "gfx90a"}, IMAGE, "vendor", "nvidia"),
        ({}, replace(IMAGE, cpu="arm64"), "cpu_architecture", "arm64"),
        ({}, replace(IMAGE, archs=("9.0",)), "image_code", "8.0"),
        ({"compute_capability": "12.0"}, IMAGE, "image_code", "12.0"),
        ({"compute_capability": "6.1"}, replace(IMAGE, cuda="13.0"), "compute_capability", "7.5"),
        ({"driver_version": "470.82", "cuda_version": "11.4"}, IMAGE, "driver", "525.60.13"),
        ({"driver_version": "", "cuda_version": ""}, IMAGE, "driver", "525.60.13"),
        ({"driver_version": "535.54", "cuda_version": "12.2"}, replace(IMAGE, needs_ptx=True), "driver", "550.54.14"),
    ],
)
def test_an_image_that_would_not_run_refuses_the_host_and_says_why(
    changes: Any, image: ImageNeeds, code: str, need: str
) -> None:
    refusal = refused([host("a", **changes)], ask(Want("A100_80G"), image=image))

    assert reason_counts(refusal) == {code: 1}
    assert refusal.reasons[0].need == need
    assert refusal.text("en")
    assert refusal.text("zh")


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({}, IMAGE),
        ({}, replace(IMAGE, archs=("8.0", "9.0"))),
        ({}, replace(IMAGE, archs=("7.0",), ptx="7.0")),
        ({"driver_version": "535.54", "cuda_version": "12.2"}, IMAGE),  # an older driver of the same major will do
        (
            {"driver_version": "535.54", "segment": "datacenter", "cuda_version": "12.2"},
            replace(IMAGE, cuda="13.0", has_compat=True),
        ),
        ({"vendor": "amd", "compute_capability": "gfx90a"}, ImageNeeds(vendor=None, cpu="")),
        ({"vendor": "amd", "compute_capability": "gfx90a"}, ImageNeeds(vendor="amd", cpu="")),
        ({"driver_version": "newest", "cuda_version": "12.4", "compute_capability": "?"}, IMAGE),
    ],
)
def test_an_image_that_runs_is_placed_and_the_checker_agrees(changes: Any, image: ImageNeeds) -> None:
    placed([host("a", **changes)], ask(Want("A100_80G"), image=image))


def test_memory_ranges_choose_among_models_and_a_gang_is_of_one_model() -> None:
    pool = [host("a", memory_gib=80), host("b", model="L40S", memory_gib=48, price_micros=5)]

    assert placed(pool, ask(Want(memory_gib=(24, None)))).members[0].host == "b"
    assert placed(pool, ask(Want(memory_gib=(60, None)))).members[0].host == "a"
    assert reason_counts(refused(pool, ask(Want(memory_gib=(24, None), nodes=2)))) == {"gang": 2}


def test_cpu_taken_by_another_holder_is_not_let_twice() -> None:
    greedy = replace(busy(NOW + HOUR), cpu_milli=90_000)

    refusal = refused([host("a", taken={0: (greedy,)})], ask(Want("A100_80G")))

    assert reason_counts(refusal) == {"busy": 1}
    assert refusal.earliest_s == NOW + HOUR


def test_the_order_of_rows_changes_nothing() -> None:
    pool = [host(f"h{i}", taken={j: (busy(None),) for j in range(i % 4)}) for i in range(12)]

    answers = {str(decide(order, ask(Want("A100_80G", 3)))) for order in (pool, pool[::-1], pool[5:] + pool[:5])}

    assert len(answers) == 1
