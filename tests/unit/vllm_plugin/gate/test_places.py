"""Who stays when there are more connections than places."""

from slipstream.vllm_plugin.gate.places import Places


def fill(places: Places[int], count: int, address: str = "a") -> list[int]:
    return [closed for number in range(count) for closed in places.enter(number, address)]


def test_the_oldest_without_a_request_goes_first() -> None:
    places = Places[int](8)
    assert fill(places, 8) == []
    assert places.hold(0)
    places.rest(1)
    assert [places.enter(number, "a") for number in (8, 9)] == [[2], [3]]


def test_the_address_with_the_most_goes_first() -> None:
    places = Places[int](8)
    places.enter(100, "b")
    assert fill(places, 9) == [0, 1]
    places.rest(100)
    assert places.enter(200, "c") == [2]


def test_some_places_are_spare() -> None:
    places = Places[int](16)
    fill(places, 16)
    assert [places.hold(number) for number in range(16)] == [True] * 14 + [False] * 2
    assert places.hold(14, spare=True)
    places.rest(0)
    assert not places.hold(15)
    places.rest(1)
    assert places.hold(15)


def test_who_has_left_is_forgotten_whatever_is_said_of_it() -> None:
    places = Places[int](8)
    fill(places, 8)
    places.hold(0)
    places.leave(0)
    places.leave(0)
    places.rest(0)
    assert places.hold(0)
    assert places.enter(8, "a") == []
    assert places.enter(9, "a") == [1]
