"""What the vectors of the grammar do not say: shapes, faults and suggestions of the same kinds."""

import time

import pytest

from leasing.grammar import Catalogue, Gpu, GrammarError, Option, Request, from_fields, parse

SXM_80 = ("1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "7g.80gb")
CATALOGUE = Catalogue(
    gpus=(
        Gpu("A100_40G", ("A100_SXM4_40G", "A100_SXM_40G"), 40, ("1g.5gb", "2g.10gb")),
        Gpu("A100_80G", ("A100_SXM4_80G", "A100_SXM_80G"), 80, SXM_80),
        Gpu("A100_PCIE_80G", (), 80, SXM_80),
        Gpu("A10_24G", ("A10",), 24),
        Gpu("H100_80G", ("H100_SXM5_80G", "H100_SXM_80G"), 80, SXM_80),
        Gpu("H20_96G", ("H20",), 96),
        Gpu("RTX_4090_24G", ("RTX4090", "RTX4090_24G", "RTX_4090"), 24, (), ("0.125", "0.25", "0.5")),
        Gpu("RTX_4090_D_24G", ("RTX4090D", "RTX_4090D", "RTX_4090_D"), 24),
        Gpu("RTX_PRO_6000_96G", ("RTX_PRO_6000",), 96, ("1g.24gb", "1g.24gb+gfx", "4g.96gb")),
        Gpu("B200_180G", ("B200", "B200_192G"), 180),
        Gpu("GB10_128G", ("DGX_SPARK", "GB10"), 128),
        Gpu("MI250_128G", ("MI250",), 128),
        Gpu("MI250X_128G", ("MI250X",), 128),
        Gpu("MI300X_192G", ("MI300X",), 192),
        Gpu("MLU370_X8_48G", ("MLU370_X8",), 48),
        Gpu("MLU370_S4_24G", ("MLU370_S4",), 24),
        Gpu("ASCEND_910B2_64G", ("910B2", "910B2_64G", "ASCEND_910B2"), 64),
        Gpu("HYGON_K100_AI", ("K100_AI",), None),
    ),
    regions=("cn-hangzhou", "cn-shanghai", "sg-1"),
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("A100:80GB:4 @ SG_1", "A100_80G x4 @sg-1"),
        ("2*A100:80GB:4", "2*A100_80G x4"),
        ("A100 : 80 GB : 4", "A100_80G x4"),
        ("A100:80GB x4", "A100_80G x4"),
        ("A100:80GB/2g.20gb x3", "A100_80G/2g.20gb x3"),
        ("B200:192GB", "B200_180G"),
        ("DGX SPARK:128GB:2", "GB10_128G x2"),
        ("A100 80 GB x 2", "A100_80G x2"),
        ("a100_80gib×2", "A100_80G x2"),
        ("A10080G", "A100_80G"),
        ("A100 - 80G", "A100_80G"),
        ("any : 24 G +", "any:24G+"),
        ("Any: 24 GB .. 48 GiB x 2 @cn hangzhou", "any:24G..48G x2 @cn-hangzhou"),
        ("any:24G..x4", "any:24G+ x4"),
        ("any:24G..@sg-1", "any:24G+ @sg-1"),
        ("any:24Gx2", "any:24G x2"),
        ("any:1024G", "any:1024G"),
        ("256*A10 x16", "256*A10_24G x16"),
        ("MI250X x8", "MI250X_128G x8"),
        ("MI250 X8", "MI250_128G x8"),
        ("mi250x x 8", "MI250X_128G x8"),
        ("MI250XX8", "MI250X_128G x8"),
        ("MLU370-X8", "MLU370_X8_48G"),
        ("MLU370 X8 x2", "MLU370_X8_48G x2"),
        ("MLU370X8X2", "MLU370_X8_48G x2"),
        ("MLU370 X8 48G", "MLU370_X8_48G"),
        ("8*910b2", "8*ASCEND_910B2_64G"),
        ("910B2 * 4", "ASCEND_910B2_64G x4"),
        ("RTX_4090/0.500x2", "RTX_4090_24G/0.5 x2"),
        ("RTX_4090 / 0.125", "RTX_4090_24G/0.125"),
        ("rtx pro 6000/1G.24GB+GFX x2", "RTX_PRO_6000_96G/1g.24gb+gfx x2"),
        ("rtx pro 6000/1g.24gbx2", "RTX_PRO_6000_96G/1g.24gb x2"),
        ("k100 ai", "HYGON_K100_AI"),
        ("A10|A10 x2|A10 @sg-1", "A10_24G | A10_24G x2 | A10_24G @sg-1"),
        ("|".join(f"any:{size}G" for size in range(1, 9)), " | ".join(f"any:{size}G" for size in range(1, 9))),
    ],
)
def test_what_people_write_is_read(text: str, canonical: str) -> None:
    request = parse(text, CATALOGUE)

    assert str(request) == canonical
    assert parse(canonical, CATALOGUE) == request


@pytest.mark.parametrize(
    ("text", "kind", "position", "nearest"),
    [
        # What cannot be a request at all
        ("   ", "empty", 0, []),
        ("\tA10", "bad_character", 0, []),
        ("A10 x2,A10", "bad_character", 6, []),
        ("A10 x²", "bad_character", 5, []),
        ("A10 x２", "bad_character", 5, []),
        ("B999" + "9" * 300 + "\x00", "too_long", 256, []),
        ("B999 é", "bad_character", 5, []),
        # Places
        ("| A10", "syntax", 0, []),
        ("A10 | | A10", "syntax", 6, []),
        ("A10 |  ", "syntax", 7, []),
        ("A10 x | A10", "syntax", 6, ["A10_24G"]),
        ("A10 x  ", "syntax", 7, ["A10_24G"]),
        ("*A10", "syntax", 0, []),
        ("2*", "syntax", 2, []),
        ("2**A10", "syntax", 2, []),
        ("/0.5", "syntax", 0, []),
        ("A10 ×× 4", "syntax", 5, ["A10_24G x4"]),
        ("A10 x4abc", "syntax", 6, ["A10_24G x4"]),
        ("A10 x4 @", "syntax", 8, ["A10_24G x4"]),
        ("A10 @@sg-1", "syntax", 5, []),
        ("A10 @sg-1 @sg-1", "syntax", 10, ["A10_24G @sg-1"]),
        ("A10 x2 @sg-1 x4", "syntax", 13, []),
        ("A10:", "syntax", 4, ["A10_24G"]),
        ("A100:80:4", "syntax", 7, ["A100_80G x4"]),
        ("A100:80GB:4 x2", "syntax", 12, ["A100_80G x4"]),
        ("RTX_4090/", "syntax", 9, ["RTX_4090_24G"]),
        ("RTX_4090/ x2", "syntax", 10, ["RTX_4090_24G x2"]),
        ("RTX_4090/0.5:2", "syntax", 12, []),
        ("any", "syntax", 3, ["any:24G+"]),
        ("any 24G x2", "syntax", 4, ["any:24G x2"]),
        ("any_80G", "syntax", 3, ["any:80G"]),
        ("any:", "syntax", 4, []),
        ("any:24..48G", "syntax", 6, ["any:24G..48G"]),
        ("any:24G..48", "syntax", 11, ["any:24G..48G"]),
        ("any:24G.48G", "syntax", 8, ["any:24G..48G"]),
        ("any:24G...48G", "syntax", 9, []),
        ("any:24G-48G", "syntax", 7, ["any:24G..48G"]),
        ("any:..48G", "syntax", 4, ["any:1G..48G"]),
        ("any:24GI", "syntax", 8, ["any:24G"]),
        ("any:24T", "syntax", 6, []),
        ("any:24G/0.5", "syntax", 7, ["any:24G"]),
        # Numbers
        ("0*A10", "out_of_range", 0, ["A10_24G"]),
        ("-1*A10", "bad_number", 0, ["A10_24G"]),
        ("1.5*A10", "bad_number", 0, ["A10_24G"]),
        ("02*A10", "bad_number", 0, ["2*A10_24G"]),
        ("A10 x+4", "bad_number", 5, ["A10_24G x4"]),
        ("A10 x1_0", "bad_number", 5, ["A10_24G x10"]),
        ("A10 x4.", "bad_number", 5, ["A10_24G x4"]),
        ("A10 x1e1", "bad_number", 5, []),
        ("A10 x00", "bad_number", 5, ["A10_24G"]),
        ("A10 x32", "out_of_range", 5, ["4*A10_24G x8", "A10_24G x16"]),
        ("A10:17", "out_of_range", 4, ["A10_24G x16"]),
        ("A100:80GB:0", "out_of_range", 10, ["A100_80G"]),
        ("A100:080GB", "bad_number", 5, ["A100_80G"]),
        ("any:1025G", "out_of_range", 4, ["any:1024G"]),
        ("any:24G..0G", "out_of_range", 9, []),
        ("any:24.5G", "bad_number", 4, ["any:24G"]),
        ("any:-24G", "bad_number", 4, ["any:24G"]),
        ("any:48G .. 24G x2", "bad_range", 4, ["any:24G..48G x2"]),
        ("|".join(f"any:{size}G" for size in range(1, 10)), "out_of_range", 56, []),
        ("|".join(["A10", "A10 x0", *(f"any:{size}G" for size in range(1, 9))]), "out_of_range", 9, ["A10_24G"]),
        # Names
        ("A10 080G", "unknown_model", 0, ["A100_80G"]),
        ("A1 00 80G", "unknown_model", 0, ["A100_80G"]),
        ("rtx 40 90", "unknown_model", 0, ["RTX_4090_24G"]),
        ("_A10", "unknown_model", 0, ["A10_24G"]),
        ("A10_", "unknown_model", 0, ["A10_24G"]),
        ("A10-x4", "unknown_model", 0, ["A10_24G x4"]),
        ("A10 4", "unknown_model", 0, ["A10_24G x4"]),
        ("4 A10", "unknown_model", 0, ["A10_24G x4", "4*A10_24G"]),
        ("2*B999", "unknown_model", 2, []),
        ("H100_SXM5 x8", "unknown_model", 0, ["H100_80G x8"]),
        ("A100 80GB PCIe x2", "unknown_model", 0, ["A100_PCIE_80G x2"]),
        ("4090 x2 @sg-1", "unknown_model", 0, ["RTX_4090_24G x2 @sg-1"]),
        ("MI300 x8", "unknown_model", 0, ["MI300X_192G x8"]),
        ("RTX_4090:48GB", "unknown_model", 0, ["RTX_4090_24G"]),
        ("any24G", "unknown_model", 0, ["any:24G"]),
        ("A10 | B999", "unknown_model", 6, []),
        ("B999 | A10 x0", "unknown_model", 0, []),
        # Two readings
        ("A100", "ambiguous", 0, ["A100_40G", "A100_80G", "A100_PCIE_80G"]),
        ("A100 SXM4 x2 @sg-1", "ambiguous", 0, ["A100_40G x2 @sg-1", "A100_80G x2 @sg-1"]),
        ("A100/2g.20gb", "ambiguous", 0, ["A100_80G/2g.20gb", "A100_PCIE_80G/2g.20gb"]),
        ("A100 x99", "ambiguous", 0, ["A100_40G", "A100_80G"]),
        ("MLU370X8", "ambiguous", 0, ["MLU370_X8_48G", "MLU370_S4_24G x8"]),
        ("MLU370 x4", "ambiguous", 0, ["MLU370_X8_48G x4", "MLU370_S4_24G x4"]),
        ("4 x A100_80G", "ambiguous", 0, ["A100_80G x4", "4*A100_80G"]),
        ("4×A10", "ambiguous", 0, ["A10_24G x4", "4*A10_24G"]),
        ("4xany:24G+", "ambiguous", 0, ["any:24G+ x4", "4*any:24G+"]),
        ("4x A10 x2", "ambiguous", 0, ["4*A10_24G x2"]),
        ("16xA10", "ambiguous", 0, ["A10_24G x16", "16*A10_24G"]),
        ("17xA10", "ambiguous", 0, ["17*A10_24G"]),
        ("2*4xA10", "ambiguous", 2, ["2*A10_24G x4"]),
        ("A10 | 4xA10", "ambiguous", 6, ["A10_24G x4", "4*A10_24G"]),
        ("0xA10", "out_of_range", 0, []),
        ("257xA10", "out_of_range", 0, []),
        # Slices, regions, twice the same
        ("A100_80G/2g-20gb x2", "unknown_slice", 9, ["A100_80G/2g.20gb x2"]),
        ("A100_80G/1g.10gb+gfx", "unknown_slice", 9, ["A100_80G/1g.10gb"]),
        ("H20/0.5", "unknown_slice", 4, ["H20_96G"]),
        ("RTX_4090/1/2", "unknown_slice", 9, ["RTX_4090_24G/0.5"]),
        ("RTX_4090/.5", "unknown_slice", 9, ["RTX_4090_24G/0.5"]),
        ("RTX_4090/1.0", "unknown_slice", 9, ["RTX_4090_24G"]),
        ("RTX_4090/0.2", "unknown_slice", 9, ["RTX_4090_24G/0.25"]),
        ("RTX_4090/-0.5", "unknown_slice", 9, []),
        ("RTX_4090/00.5", "unknown_slice", 9, []),
        ("A10 @cn-hangzou", "unknown_region", 5, ["A10_24G @cn-hangzhou"]),
        ("A10 @sg-1-", "unknown_region", 5, ["A10_24G @sg-1"]),
        ("A10 @sg", "unknown_region", 5, ["A10_24G @sg-1"]),
        ("A10 x2 | A10:2", "duplicate_option", 9, []),
        ("any:24G | any:24G..24G | A10 x0", "duplicate_option", 10, []),
    ],
)
def test_a_fault_is_named_with_its_place_and_what_was_meant(
    text: str, kind: str, position: int, nearest: list[str]
) -> None:
    with pytest.raises(GrammarError) as refusal:
        parse(text, CATALOGUE)

    assert (refusal.value.kind, refusal.value.position) == (kind, position)
    assert set(nearest) <= set(refusal.value.nearest)


def test_the_likeliest_form_comes_first() -> None:
    with pytest.raises(GrammarError) as refusal:
        parse("A100_81G x4", CATALOGUE)

    assert refusal.value.nearest[0] == "A100_80G x4"


def test_a_count_that_fits_one_machine_less_is_shown_as_machines_of_eight_first() -> None:
    with pytest.raises(GrammarError) as refusal:
        parse("A10 x24 @sg-1", CATALOGUE)

    assert refusal.value.nearest[0] == "3*A10_24G x8 @sg-1"


@pytest.mark.parametrize("text", ["A" * 50_000, "A10 " * 12_500, "x" * 50_000 + "!", "|" * 50_000])
def test_fifty_thousand_characters_are_refused_by_their_length(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(GrammarError) as refusal:
        parse(text, CATALOGUE)

    assert (refusal.value.kind, refusal.value.position) == ("too_long", 256)
    assert time.perf_counter() - started < 0.05


@pytest.mark.parametrize("text", ["x" * 256, "4x" * 128, "A x4" * 64, "MI250X x8 " * 25, "RTX_4090/" + "x1" * 120])
def test_the_longest_text_with_the_most_readings_is_answered_at_once(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(GrammarError):
        parse(text, CATALOGUE)

    assert time.perf_counter() - started < 0.25


def test_both_counts_of_the_four_fields_default_to_one() -> None:
    assert str(from_fields({"gpu_model": "any:24G+"}, CATALOGUE)) == "any:24G+"
    assert str(from_fields({"gpu_model": "rtx-4090/0.50", "node_count": 256, "gpu_count": 16}, CATALOGUE)) == (
        "256*RTX_4090_24G/0.5 x16"
    )


def test_fields_that_are_not_the_grammars_are_passed_over() -> None:
    fields = {"gpu_model": "A10", "node_count": 2, "image_id": "pytorch_latest", "lease_term": "on_demand"}

    assert str(from_fields(fields, CATALOGUE)) == "2*A10_24G"


@pytest.mark.parametrize(
    ("fields", "field", "kind", "position"),
    [
        ({}, "gpu_model", "required", 0),
        ({"gpu_model": None}, "gpu_model", "required", 0),
        ({"gpu_model": 4090}, "gpu_model", "wrong_type", 0),
        ({"gpu_model": ""}, "gpu_model", "empty", 0),
        ({"gpu_model": "A10\n"}, "gpu_model", "bad_character", 3),
        ({"gpu_model": "A" * 257}, "gpu_model", "too_long", 256),
        ({"gpu_model": "B999"}, "gpu_model", "unknown_model", 0),
        ({"gpu_model": "A100"}, "gpu_model", "ambiguous", 0),
        ({"gpu_model": "A10 x4"}, "gpu_model", "syntax", 4),
        ({"gpu_model": "2*A10"}, "gpu_model", "syntax", 1),
        ({"gpu_model": "A10 @sg-1"}, "gpu_model", "syntax", 4),
        ({"gpu_model": "A10|H20"}, "gpu_model", "syntax", 3),
        ({"gpu_model": "A10", "node_count": 0}, "node_count", "out_of_range", 0),
        ({"gpu_model": "A10", "node_count": -1}, "node_count", "out_of_range", 0),
        ({"gpu_model": "A10", "node_count": 257}, "node_count", "out_of_range", 0),
        ({"gpu_model": "A10", "node_count": 10**400}, "node_count", "out_of_range", 0),
        ({"gpu_model": "A10", "node_count": True}, "node_count", "wrong_type", 0),
        ({"gpu_model": "A10", "node_count": "4"}, "node_count", "wrong_type", 0),
        ({"gpu_model": "A10", "node_count": None}, "node_count", "wrong_type", 0),
        ({"gpu_model": "A10", "node_count": 1.0}, "node_count", "wrong_type", 0),
        ({"gpu_model": "A10", "gpu_count": 17}, "gpu_count", "out_of_range", 0),
        ({"gpu_model": "A10", "gpu_count": [1]}, "gpu_count", "wrong_type", 0),
    ],
)
def test_a_fault_of_the_four_fields_names_the_field(
    fields: dict[str, object], field: str, kind: str, position: int
) -> None:
    with pytest.raises(GrammarError) as refusal:
        from_fields(fields, CATALOGUE)

    assert (refusal.value.field, refusal.value.kind, refusal.value.position) == (field, kind, position)


def test_a_count_in_the_field_gpu_model_is_taken_out_of_what_is_suggested() -> None:
    for text in ("2*A10", "A10 x4"):
        with pytest.raises(GrammarError) as refusal:
            from_fields({"gpu_model": text}, CATALOGUE)

        assert refusal.value.nearest == ("A10_24G",)


def test_in_the_field_gpu_model_a_name_is_a_name_even_if_it_ends_like_a_count() -> None:
    assert str(from_fields({"gpu_model": "MLU370 x8", "gpu_count": 2}, CATALOGUE)) == "MLU370_X8_48G x2"


def test_the_structured_form_is_forgiving_in_names_as_the_text_is() -> None:
    value = {"options": [{"model": "rtx-4090", "slice": "0.50", "region": "SG_1"}, {"memory_gib": {"min": 24}}]}

    assert Request.from_json(value, CATALOGUE) == Request(
        (Option(model="RTX_4090_24G", slice="0.5", region="sg-1"), Option(memory_gib=(24, None)))
    )


@pytest.mark.parametrize(
    ("value", "field", "kind"),
    [
        ([], "", "wrong_type"),
        ({"$gt": ""}, "$gt", "unknown_field"),
        ({}, "options", "required"),
        ({"options": {}}, "options", "wrong_type"),
        ({"options": []}, "options", "empty"),
        ({"options": ["A10"]}, "options/0", "wrong_type"),
        ({"options": [{}]}, "options/0/model", "required"),
        ({"options": [{"model": "A10", "gpus": 4}]}, "options/0/gpus", "unknown_field"),
        ({"options": [{"model": "A10", "count": 0}]}, "options/0/count", "out_of_range"),
        ({"options": [{"model": "A10", "nodes": 1.0}]}, "options/0/nodes", "wrong_type"),
        ({"options": [{"model": "A100"}]}, "options/0/model", "ambiguous"),
        ({"options": [{"model": "B999"}]}, "options/0/model", "unknown_model"),
        ({"options": [{"model": "A10", "slice": "0.5"}]}, "options/0/slice", "unknown_slice"),
        ({"options": [{"model": "A10", "region": "mars"}]}, "options/0/region", "unknown_region"),
        ({"options": [{"model": "A10", "memory_gib": {"min": 1}}]}, "options/0/model", "syntax"),
        ({"options": [{"memory_gib": 24}]}, "options/0/memory_gib", "wrong_type"),
        ({"options": [{"memory_gib": {"max": 24}}]}, "options/0/memory_gib/min", "required"),
        ({"options": [{"memory_gib": {"min": 48, "max": 24}}]}, "options/0/memory_gib", "bad_range"),
        ({"options": [{"memory_gib": {"min": 1, "max": 1025}}]}, "options/0/memory_gib/max", "out_of_range"),
        ({"options": [{"model": "A10"}, {"model": "A10_24G", "count": 1}]}, "options/1", "duplicate_option"),
        ({"options": [{"memory_gib": {"min": n}} for n in range(1, 10)]}, "options/8", "out_of_range"),
    ],
)
def test_a_fault_of_the_structured_form_names_its_member(value: object, field: str, kind: str) -> None:
    with pytest.raises(GrammarError) as refusal:
        Request.from_json(value, CATALOGUE)

    assert (refusal.value.field, refusal.value.kind) == (field, kind)
