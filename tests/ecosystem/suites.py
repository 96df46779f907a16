"""Runs the tests that other projects wrote, on xla: ``make ecosystem``.

Each comes with its project's source distribution, from the registry, of the version that is
installed. ``suites.toml`` has the reasons for which a test may fail that are not ours, each with
expressions that are searched in the test's name and error; all else has to pass.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "suites"


def sources(project: str) -> Path:
    """Returns the folder of a project's source distribution, fetched if it is not there."""
    version = importlib.metadata.version(project)
    name = f"{project}-{version}"
    if not (FOLDER / name).exists():
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        fetch += [f"--no-binary={project}", "--dest", str(FOLDER)]
        subprocess.run([*fetch, f"{project}=={version}"], check=True)
        with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return FOLDER / name


def run(project: str, suite: dict[str, Any], arguments: list[str]) -> bool:
    """Runs a suite and prints what failed; returns whether each failure has a reason."""
    if importlib.util.find_spec(project) is None:
        print(f"== {project}: not installed, not run")
        return True
    folder, results = sources(project), FOLDER / f"{project}.xml"
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider"]
    command += ["--timeout=240", f"--junit-xml={results}", "--tb=short", "tests"]
    command += [f"--ignore=tests/{name}" for name in suite.get("ignored", {})]
    environment = {"PJRT_DEVICE": "CPU", "HF_HUB_OFFLINE": "1", **suite.get("environment", {})}
    subprocess.run(
        [*command, *arguments], cwd=folder, env={**os.environ, **environment}, check=False
    )
    cases = list(xml.etree.ElementTree.parse(results).iter("testcase"))
    failed = {
        f"{case.get('classname')}::{case.get('name')}": "".join(error.itertext())
        for case in cases
        for error in (*case.iter("failure"), *case.iter("error"))
    }
    print(f"== {project}: {len(cases)} tests, {len(failed)} failed")
    for reason, expressions in suite.get("reasons", {}).items():
        pattern = re.compile("|".join(expressions))
        known = [name for name, error in failed.items() if pattern.search(f"{name}\n{error}")]
        for name in known:
            del failed[name]
        print(f"  {len(known)}: {reason}")
    for name in sorted(failed):
        print(f"  no reason known: {name}")
    return bool(cases) and not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("projects", nargs="*", help="all without")
    options, arguments = parser.parse_known_args()
    suites = tomllib.loads((HERE / "suites.toml").read_text())
    projects = options.projects or list(suites)
    # Each runs, whatever became of the one before it.
    good = [run(project, suites[project], arguments) for project in projects]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
