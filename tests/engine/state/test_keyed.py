from __future__ import annotations

from typing import Any

import pytest

from cojoin.engine.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cojoin.errors import FunctionError
from tests.engine.state.test_kinds import state


@pytest.mark.parametrize(
    "use",
    [
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).value(),
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).update(1),
        lambda: state(ValueStateDescriptor("x", "int"), code=-1).clear(),
        lambda: state(ListStateDescriptor("x", "int"), code=-1).add(1),
        lambda: state(ListStateDescriptor("x", "int"), code=-1).get(),
        lambda: state(MapStateDescriptor("x", "int", "int"), code=-1).put(1, 1),
        lambda: state(MapStateDescriptor("x", "int", "int"), code=-1).is_empty(),
    ],
)
def test_a_state_is_refused_where_no_key_is_current(use: Any) -> None:
    with pytest.raises(FunctionError, match="F: state 'x': no key is current; use it in process_element1"):
        use()


def test_a_state_that_nobody_used_has_nothing_to_put_back() -> None:
    total = state(ValueStateDescriptor("total", "double"))
    assert total.dump() is None
    total.value()
    assert total.dump()[0] == []
