"""The selection of tests follows imports, by whatever name, and prefers those that are near."""

from __future__ import annotations

from tests.changed import selected_tests


def test_a_module_selects_its_own_test_first_and_then_who_imports_it():
    selected = selected_tests(["cojoin/engine/joins/asof.py"])
    assert selected[0] == "tests/engine/joins/test_asof.py"
    assert {"tests/properties/test_asof.py", "tests/spark/test_joins.py", "tests/test_readme.py"} <= set(selected)
    assert "tests/engine/time/test_timers.py" not in selected


def test_what_no_module_imports_selects_little():
    selected = selected_tests(["cojoin/cli/options.py"])
    assert set(selected) >= {"tests/cli/test_run.py", "tests/cli/test_demo.py"}
    assert len(selected) < 30


def test_data_and_conftests_select_the_tests_of_their_folder():
    assert "tests/flink/test_cases.py" in selected_tests(["tests/flink/flink_semantics.jsonl"])
    assert "tests/checkpoints/inspect/test_query_state.py" in selected_tests(["tests/checkpoints/conftest.py"])
    assert "tests/engine/joins/test_asof.py" not in selected_tests(["tests/checkpoints/conftest.py"])
    assert "tests/releases/test_releases.py" in selected_tests(["tests/releases/0.5.0/asof/manifest.json"])


def test_a_document_selects_the_test_that_reads_it_and_settings_select_all():
    assert selected_tests(["README.md"]) == ["tests/test_readme.py"]
    assert len(selected_tests(["pyproject.toml"])) > 250
    assert selected_tests(["LICENSE"]) == []
