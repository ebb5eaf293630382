"""docker/spark.sh starts an executor with the variables of Kubernetes, and a real driver gives it tasks.

The driver uses a standalone master without workers, so this executor is the only one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import ROOT
from helpers.ports import free_port
from helpers.spark_cluster import SparkCluster

from headrace.jobs.spark.java import find_java

DRIVER = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1]).config("spark.driver.port", sys.argv[2])
for key, value in (("host", "127.0.0.1"), ("bindAddress", "127.0.0.1")):
    builder = builder.config(f"spark.driver.{key}", value)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
print(spark.sparkContext.applicationId, flush=True)
print(spark.range(0, 1000, 1, 4).mapInPandas(lambda frames: frames, "id bigint").count(), flush=True)
"""


@pytest.mark.slow
def test_an_executor_of_the_image_gets_tasks(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path, free_port())
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAVA_HOME": str(find_java(None).home),
        "PYSPARK_PYTHON": sys.executable,
    }
    port = free_port()
    processes: list[subprocess.Popen[str]] = []
    try:
        cluster.start_master()
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, cluster.address, str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(driver)
        assert driver.stdout
        application = driver.stdout.readline().strip()
        variables = {
            "DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "EXECUTOR_ID": "1",
            "EXECUTOR_CORES": "1",
            "EXECUTOR_MEMORY": "512m",
            "APPLICATION_ID": application,
            "EXECUTOR_POD_IP": "127.0.0.1",
            "EXECUTOR_POD_NAME": "exec-1",
            "RESOURCE_PROFILE_ID": "0",
            "JAVA_OPT_0": "-XX:TieredStopAtLevel=1",
            # Spark sets it for Java 17 and later.
            "JAVA_OPT_1": "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "JAVA_OPT_2": "--add-opens=java.base/java.nio=ALL-UNNAMED",
        }
        work = tmp_path / "work"
        work.mkdir()
        with (tmp_path / "executor.log").open("w") as log:
            executor = subprocess.Popen(
                ["bash", str(ROOT / "docker" / "spark.sh"), "executor"],
                env=environment | {f"SPARK_{name}": value for name, value in variables.items()},
                cwd=work,
                stdout=log,
                stderr=log,
                text=True,
            )
        processes.append(executor)
        out, _ = driver.communicate(timeout=300)
        assert out.strip() == "1000", (tmp_path / "executor.log").read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        cluster.close()
