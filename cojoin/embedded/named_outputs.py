"""The outputs of a run or of a step, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.operator import OUTPUT, REJECTED
from cojoin.installed_packages import check_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import pyarrow as pa

    from cojoin.engine.plan import Plan
    from cojoin.engine.side_outputs import OutputTag

__all__ = ["Outputs"]


class Outputs:
    """The part of a result or a step that returns its outputs."""

    plan: Plan
    tables: Mapping[str, pa.Table]

    @property
    def output(self) -> pa.Table:
        """The rows of the main output."""
        return self.tables[OUTPUT]

    @property
    def rejected(self) -> pa.Table:
        """The rejected rows with their reasons."""
        return self.tables[REJECTED]

    @property
    def side_outputs(self) -> dict[OutputTag, pa.Table]:
        """The rows of each side output, by its tag."""
        return {tag: self.tables[tag.tag_id] for tag in self.plan.side_outputs}

    def to_pandas(self, output: Any = "main") -> pd.DataFrame:
        """Return one output as a pandas DataFrame; see ``Joined.to_pandas``.

        Args:
            output: ``"main"``, ``"rejected"``, or the ``OutputTag`` of a side output.

        Raises:
            ConfigurationError: The output does not exist.
            EnvironmentSetupError: pandas is missing or too old.
        """
        check_pandas("to_pandas()")
        from cojoin.embedded.pandas_frames import as_pandas  # noqa: PLC0415 - it imports pandas

        return as_pandas(self.tables[self.plan.output_name(output)])
