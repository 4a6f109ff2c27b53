"""Sessions: what they are started with, and what is said where they cannot start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException

from toril.cli.doctor import check_java, check_spark, check_workers
from toril.cli.lake.target import opened
from toril.cli.main import cli
from toril.errors import InvalidValue
from toril.lake import jars
from toril.lake.errors import LakeError, SparkMissing
from toril.lake.given import at_start
from toril.lake.lake import Lake
from toril.lake.sessions import DELTA, session, settings


@pytest.mark.parametrize(
    "master", ["lokal", "local[x]", "local[0]", "spark:/host", "http://host", "mesos://host"]
)
def test_an_unknown_master_is_refused(master: str) -> None:
    with pytest.raises(InvalidValue, match=r"master .* is not valid: local\[N\], spark://…, yarn, k8s://…"):
        session(master)


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        SparkMissing, match=r"Java 17, and there is none on the path: apt-get install openjdk-17"
    ):
        session("local[1]")
    assert check_java().verdict == "absent"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"JAVA_HOME is .*, and there is no bin/java in it"):
        session("local[1]")
    assert check_java().verdict == "wrong"


@pytest.mark.parametrize(
    ("version", "modules", "said"),
    [
        ("1.8.0_392", "java.base@8", "Spark needs Java 17, and .* is '1.8.0_392'"),
        ("11.0.2", "jdk.incubator.vector@11", "Spark needs Java 17, and .* is '11.0.2'"),
        ("17.0.1", "java.base@17.0.1", "lacks the module jdk.incubator.vector"),
        ("", "", "Spark needs Java 17, and .* is ''"),
    ],
)
def test_a_java_that_spark_would_not_start_with_is_refused(
    version: str, modules: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    first = f"echo 'openjdk version \"{version}\"' >&2" if version else "true"
    binary.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then {first}; else echo {modules}; fi\n')
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=said):
        session("local[1]")
    found = check_java()
    assert (found.verdict, bool(found.fix)) == ("warning", True)


def test_without_its_jars_it_says_what_fetches_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORIL_JARS", str(tmp_path))
    with pytest.raises(
        SparkMissing, match=rf"11 of 11 jars are not in {tmp_path} .*: `toril lake setup` fetches"
    ):
        settings("local[1]")
    (tmp_path / jars.pinned()[0].name).write_bytes(b"half of it")
    assert len(jars.missing()) == 11, "a file with other content is none"
    found = check_spark()[1]
    assert (found.verdict, found.fix) == ("absent", "`toril lake setup` fetches them")


def test_setup_keeps_what_is_there() -> None:
    done = CliRunner().invoke(cli, ["lake", "setup", "--json"])
    assert done.exit_code == 0, done.output
    assert '"fetched": []' in done.output


def test_settings_follow_the_cores() -> None:
    two, many = settings("local[2]"), settings("local[64]")
    assert (two["spark.sql.shuffle.partitions"], many["spark.sql.shuffle.partitions"]) == ("4", "128")
    assert two["spark.databricks.delta.snapshotPartitions"] == "2"
    assert many["spark.databricks.delta.snapshotPartitions"] == "16"
    assert settings("local")["spark.sql.shuffle.partitions"] == "2"
    assert settings("local[*]")["spark.sql.shuffle.partitions"] == str(2 * (os.cpu_count() or 2))
    assert settings("local[2,3]")["spark.sql.shuffle.partitions"] == "4"
    for given, parts in (
        ({"spark.cores.max": "300"}, "600"),
        ({"spark.executor.instances": "10", "spark.executor.cores": "4"}, "80"),
        ({"spark.executor.instances": "10"}, "20"),
    ):
        assert settings("spark://h:7077", given)["spark.sql.shuffle.partitions"] == parts
        assert settings("local[2]", given)["spark.sql.shuffle.partitions"] == "4", "they are for a cluster"
    with pytest.raises(InvalidValue, match="spark.cores.max 'many' is not valid: a whole number"):
        settings("yarn", {"spark.cores.max": "many"})
    assert "spark.driver.bindAddress" not in settings("spark://h:7077"), "a cluster must reach the driver"


def test_what_a_user_has_set_is_left_as_it_is_or_added_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.extensions": "org.example.Extension",
        "spark.jars": "/other.jar",
    }
    made = settings("local[2]", given)
    assert "spark.sql.shuffle.partitions" not in made
    assert made["spark.sql.extensions"] == f"org.example.Extension,{DELTA['spark.sql.extensions']}"
    assert made["spark.jars"].split(",") == ["/other.jar", *map(str, jars.paths())]
    monkeypatch.setenv("TORIL_JARS", str(tmp_path))
    for has_delta in (
        {"spark.jars": "/x/delta-spark_4.2_2.13-4.4.0.jar,/other.jar"},
        {"spark.jars.packages": "org.example:x:1,io.delta:delta-spark_4.2_2.13:4.4.0"},
    ):
        assert "spark.jars" not in settings("local[2]", has_delta), "nothing is asked of our folder"


def test_what_a_user_has_set_is_found_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'spark.c=said here' -c spark.d=4 pyspark-shell")
    said = {"spark.c": "said here", "spark.d": "4"}
    assert at_start() == said, "there need not be a file"
    (tmp_path / "spark-defaults.conf").write_text(
        "# of all jobs\n\n spark.a   one two \nspark.b=2\nspark.c: other\nspark.e\n"
    )
    assert at_start() == {"spark.a": "one two", "spark.b": "2", "spark.e": "", **said}


def test_settings_are_said_in_the_command_line(lake: Lake) -> None:
    command = ["lake", "tables", "--lake", lake.path, "--json"]
    done = CliRunner().invoke(cli, [*command, "--conf", "spark.toril.a=1", "--conf", "spark.toril.b=x=y"])
    assert done.exit_code == 0, done.output
    assert lake.spark.conf.get("spark.toril.a") == "1"
    assert lake.spark.conf.get("spark.toril.b") == "x=y"
    for wrong in ("spark.toril.a", "=1", "toril.a=1"):
        refused = CliRunner().invoke(cli, [*command, "--conf", wrong])
        assert isinstance(refused.exception, InvalidValue)
        assert "--conf" in str(refused.exception)


def test_doctor_looks_at_the_python_of_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert check_workers().verdict == "ok"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert check_workers().verdict == "ok"
    for script in ("echo 3.8", "echo No module named toril >&2; exit 1"):
        other = tmp_path / "python"
        other.write_text(f"#!/bin/sh\n{script}\n")
        other.chmod(0o755)
        monkeypatch.setenv("PYSPARK_PYTHON", str(other))
        found = check_workers()
        assert found.verdict == "wrong"
        assert sys.executable in found.fix
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nothing"))
    assert check_workers().verdict == "wrong"
    monkeypatch.delenv("PYSPARK_PYTHON")
    (tmp_path / "spark-defaults.conf").write_text(f"spark.pyspark.python {tmp_path / 'python'}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = check_workers()
    assert (found.verdict, found.found[:20]) == ("wrong", "spark.pyspark.python")


def test_what_goes_wrong_in_spark_is_one_line_for_who_types_a_command(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with click.Context(click.Command("look")), opened(lake.path, None, quiet=True) as its:
            its.spark.sql("SELECT * FROM nowhere").collect()

    with pytest.raises(LakeError, match=r"^\[TABLE_OR_VIEW_NOT_FOUND\] .*TORIL_SPARK_VERBOSE=1 shows all"):
        work()
    monkeypatch.setenv("TORIL_SPARK_VERBOSE", "1")
    with pytest.raises(AnalysisException):
        work()
