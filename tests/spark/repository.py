"""A repository of two small jars on this machine, and the settings that make it the only one there is."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "test.shop:prices_4.2_2.13:1.0.0"
NAMES = {"test.shop_prices_4.2_2.13-1.0.0.jar", "test.shop_money-2.5.jar"}

_SETTINGS = """<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here" m2compatible="true">
<ivy pattern="{0}/[organisation]/[module]/[revision]/[module]-[revision].pom"/>
<artifact pattern="{0}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
</filesystem></resolvers></ivysettings>"""


def make_repository(folder: Path) -> dict[str, str]:
    """Write a package that needs another, and return the settings of Spark's that find them."""
    _add(folder, "prices_4.2_2.13", "1.0.0", ("money", "2.5"))
    _add(folder, "money", "2.5")
    settings = folder / "ivysettings.xml"
    settings.write_text(_SETTINGS.format(folder / "repository"), encoding="utf-8")
    return {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(folder / "ivy")}


def _add(folder: Path, module: str, version: str, *needs: tuple[str, str]) -> None:
    place = folder / "repository" / "test" / "shop" / module / version
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / f"{module}-{version}.jar", "w") as jar:
        jar.writestr(f"{module}.txt", module * 1000)
    dependencies = "".join(
        f"<dependency><groupId>test.shop</groupId><artifactId>{name}</artifactId><version>{which}</version></dependency>"
        for name, which in needs
    )
    (place / f"{module}-{version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>test.shop</groupId><artifactId>{module}</artifactId>"
        f"<version>{version}</version><dependencies>{dependencies}</dependencies></project>",
        encoding="utf-8",
    )
