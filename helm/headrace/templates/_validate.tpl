{{/* Rules between values. values.schema.json has the rules of single values. */}}
{{- define "headrace.validate" -}}
{{- $spread := or (eq .Values.runs.launcher "kubernetes") (eq (include "headrace.onCluster" .) "yes") -}}
{{- if and $spread .Values.home.persistent (not .Values.home.existingClaim) (ne .Values.home.accessMode "ReadWriteMany") -}}
{{- fail (printf "home.accessMode: runs.launcher `%s` and spark.master `%s` put pods on several nodes, which share stored results. Set ReadWriteMany, home.existingClaim, or config.staging.path: s3://BUCKET/FOLDER and home.persistent: false." .Values.runs.launcher .Values.spark.master) -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (include "headrace.onCluster" .) (not (include "headrace.onKubernetes" .)) (not .Values.networkPolicy.sparkFrom) -}}
{{- fail (printf "networkPolicy.sparkFrom: the executors of %s connect to the driver. Name their pods or addresses, or set networkPolicy.enabled: false." .Values.spark.master) -}}
{{- end -}}
{{- if and .Values.pipelines .Values.pipelinesConfigMap -}}
{{- fail "pipelinesConfigMap: set either pipelines or the name of an existing ConfigMap." -}}
{{- end -}}
{{- range $name, $text := .Values.pipelines -}}
{{- if not (regexMatch `^[A-Za-z0-9][A-Za-z0-9._-]*\.ya?ml$` $name) -}}
{{- fail (printf "pipelines: `%s` must be the name of a file, such as orders.yaml." $name) -}}
{{- end -}}
{{- $file := fromYaml $text -}}
{{- if hasKey $file "Error" -}}
{{- fail (printf "pipelines: %s is not YAML: %s" $name $file.Error) -}}
{{- end -}}
{{- if not (and $file.name $file.sources $file.sinks) -}}
{{- fail (printf "pipelines: %s is not a pipeline file: it needs name, sources and sinks. Check it with `headrace validate --quick`." $name) -}}
{{- end -}}
{{- end -}}
{{- range $key, $owner := dict "state_backend" "ledger" "spark" "spark" "home" "home" -}}
{{- if hasKey $.Values.config $key -}}
{{- fail (printf "config.%s: the chart writes this setting. Set the value `%s`." $key $owner) -}}
{{- end -}}
{{- end -}}
{{- range $key, $owner := dict "storage" "storage" "run_launcher" "runs.launcher" -}}
{{- if hasKey $.Values.dagster $key -}}
{{- fail (printf "dagster.%s: the chart writes this key. Set the value `%s`." $key $owner) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.env -}}
{{- if regexMatch "PASSWORD|SECRET|TOKEN" (upper $name) -}}
{{- fail (printf "env.%s: secrets are references to existing Secrets. Use secretEnv." $name) -}}
{{- end -}}
{{- end -}}
{{- $names := dict -}}
{{- range .Values.secretEnv -}}
{{- if hasKey $names .name -}}
{{- fail (printf "secretEnv: %s is there twice." .name) -}}
{{- end -}}
{{- if hasKey $.Values.env .name -}}
{{- fail (printf "env.%s: secretEnv has this variable." .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- range .Values.codeLocations -}}
{{- if eq .name "headrace" -}}
{{- fail "codeLocations: `headrace` is the name of the chart's own location." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: an ingress needs the name under which people open the pages." -}}
{{- end -}}
{{- end -}}
