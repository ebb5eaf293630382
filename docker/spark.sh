#!/bin/bash
# Starts a process of Spark with the image's own Spark and Java.
#   headrace-spark org.apache.spark.deploy.master.Master ARGUMENTS     of a standalone cluster
#   headrace-spark executor                                            as Spark on Kubernetes starts it
set -eu
SPARK_HOME=$(python -c "from pyspark.find_spark_home import _find_spark_home as find; print(find())")
JAVA_HOME=$(python -c "from headrace.jobs.spark.java import find_java; print(find_java().home)")
export SPARK_HOME JAVA_HOME
if [ "$1" != executor ]; then
  exec "$SPARK_HOME/bin/spark-class" "$@"
fi
# The driver sets these variables in the pod. Each option of Java has one of its own.
options=()
while name="SPARK_JAVA_OPT_${#options[@]}"; [ -n "${!name:-}" ]; do
  options+=("${!name}")
done
exec "$JAVA_HOME/bin/java" ${options[@]+"${options[@]}"} "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
