#!/bin/sh
# Starts a process of a Spark standalone cluster with the image's own Spark and Java:
#   headrace-spark org.apache.spark.deploy.master.Master ARGUMENTS
set -eu
SPARK_HOME=$(python -c "from pyspark.find_spark_home import _find_spark_home as find; print(find())")
JAVA_HOME=$(python -c "from headrace.jobs.spark.java import find_java; print(find_java().home)")
export SPARK_HOME JAVA_HOME
exec "$SPARK_HOME/bin/spark-class" "$@"
