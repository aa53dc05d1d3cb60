"""The release workflow publishes every image of the checkout, and the chart and the package have one version."""

from __future__ import annotations

from pathlib import Path

import yaml

from multistep.version import __version__

ROOT = Path(__file__).parents[2]


def test_chart_and_package_have_the_same_version() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "multistep" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_a_release_has_every_image_with_an_sbom() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
    files = {each["file"] for each in jobs["images"]["strategy"]["matrix"]["include"]}
    assert files == {str(each.relative_to(ROOT)) for each in (ROOT / "Dockerfile", *ROOT.glob("*/Dockerfile"))}
    [build] = [step["with"] for step in jobs["images"]["steps"] if step.get("uses", "").startswith("docker/build-push-action")]
    assert build["sbom"] is True and build["push"] is True
