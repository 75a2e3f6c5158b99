"""Image against host, where the cases of the vectors are silent."""

from dataclasses import replace

import pytest

from leasing.compat import HostOffers, ImageNeeds, compat, version

IMAGE = ImageNeeds(vendor="nvidia", cpu="amd64", cuda="12.4")
HOST = HostOffers(vendor="nvidia", cpu="amd64", driver="550.54.15", cc="8.0", segment="datacenter")


def test_versions_are_numbers_and_nothing_else() -> None:
    assert version("12.10") > version("12.9")
    with pytest.raises(ValueError, match="no version"):
        version("12.x")
    with pytest.raises(ValueError, match="no version"):
        version("١٢.4")


def test_an_image_for_no_vendor_runs_on_all() -> None:
    assert compat(ImageNeeds(vendor=None, cpu="amd64"), replace(HOST, vendor="huawei", driver=None, cc=None)).runs


def test_what_nvml_says_goes_before_the_table_of_branches() -> None:
    assert compat(replace(IMAGE, cuda="12.6"), HOST).result == "ok_minor"
    assert compat(replace(IMAGE, cuda="12.6"), replace(HOST, cuda="12.6")).result == "ok"


def test_a_patch_release_of_the_toolkit_needs_no_newer_driver() -> None:
    assert compat(replace(IMAGE, cuda="12.4.1"), HOST).result == "ok"


def test_a_branch_that_is_not_listed_carries_at_least_what_the_one_before_it_carries() -> None:
    assert compat(replace(IMAGE, cuda="12.6"), replace(HOST, driver="565.57.01")).result == "ok"
    assert compat(replace(IMAGE, cuda="13.1"), replace(HOST, driver="999.1")).result == "ok"


def test_a_driver_older_than_the_table_still_has_the_major_of_its_least_driver() -> None:
    assert compat(replace(IMAGE, cuda="11.8"), replace(HOST, driver="470.82.01")).result == "ok_minor"
    verdict = compat(replace(IMAGE, cuda="11.8"), replace(HOST, driver="450.51.06"))
    assert (verdict.result, verdict.need) == ("driver_too_old", "450.80.02")


def test_the_cure_for_ptx_is_the_driver_of_the_toolkit_and_not_the_least_of_its_major() -> None:
    verdict = compat(replace(IMAGE, needs_ptx=True), replace(HOST, driver="520.61.05"))

    assert (verdict.result, verdict.need) == ("driver_too_old", "550.54.14")


def test_a_least_branch_that_carries_the_toolkit_cures_ptx_too() -> None:
    verdict = compat(replace(IMAGE, cuda="13.0", needs_ptx=True), replace(HOST, driver="570.124.06"))

    assert (verdict.result, verdict.need) == ("driver_too_old", "580")


def test_a_patch_release_names_the_driver_that_came_with_it() -> None:
    verdict = compat(replace(IMAGE, cuda="12.8.1", needs_ptx=True), HOST)

    assert (verdict.result, verdict.need) == ("driver_too_old_for_ptx", "570.124.06")


def test_ptx_above_the_gpu_is_no_code() -> None:
    image = replace(IMAGE, archs=("9.0",), ptx="9.0")

    assert compat(image, HOST).result == "no_code_for_gpu"


def test_machine_code_of_a_higher_minor_does_not_run() -> None:
    assert compat(replace(IMAGE, archs=("8.6",)), HOST).result == "no_code_for_gpu"
    assert compat(replace(IMAGE, archs=("8.6",)), replace(HOST, cc="8.9")).result == "ok"


def test_of_a_family_newer_than_the_tables_nothing_is_assumed() -> None:
    verdict = compat(IMAGE, replace(HOST, cc="13.0"))

    assert (verdict.result, verdict.need) == ("no_code_for_gpu", None)


def test_a_family_older_than_the_tables_is_in_every_toolkit_that_has_not_dropped_it() -> None:
    assert compat(IMAGE, replace(HOST, cc="7.0")).result == "ok"


def test_what_no_driver_would_cure_is_named_before_the_driver() -> None:
    verdict = compat(replace(IMAGE, cuda="13.0"), replace(HOST, driver="470.1", cc="7.0"))

    assert verdict.result == "gpu_too_old_for_image"


def test_forward_compatibility_is_for_data_centres_only() -> None:
    image = replace(IMAGE, cuda="13.0", has_compat=True)

    assert compat(image, replace(HOST, segment="datacenter")).result == "ok_forward"
    for segment in ("consumer", "workstation", "integrated", None):
        assert compat(image, replace(HOST, segment=segment)).result == "driver_too_old"


def test_a_driver_that_is_not_known_is_not_trusted() -> None:
    verdict = compat(IMAGE, replace(HOST, driver=None))

    assert (verdict.result, verdict.need) == ("driver_too_old", "525.60.13")
