{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels by which Services and policies find pods. Takes {root, component}. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "headrace.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "headrace.pipelinesConfigMap" -}}
{{ default (printf "%s-pipelines" (include "headrace.fullname" .)) .Values.pipelinesConfigMap }}
{{- end -}}

{{- define "headrace.onKubernetes" -}}
{{- if hasPrefix "k8s://" .Values.spark.master }}yes{{ end -}}
{{- end -}}

{{- define "headrace.onCluster" -}}
{{- if not (hasPrefix "local" .Values.spark.master) }}yes{{ end -}}
{{- end -}}

{{/* dagster.yaml as an object: the chart's file, storage, launcher, then the user's keys. */}}
{{- define "headrace.dagster" -}}
{{- $config := .Files.Get "files/dagster.yaml" | fromYaml -}}
{{- $storage := .Values.storage -}}
{{- $postgres := dict "hostname" $storage.host "port" (int $storage.port) "db_name" $storage.database "username" $storage.user "password" (dict "env" "DAGSTER_POSTGRES_PASSWORD") "params" (dict "sslmode" $storage.sslmode) -}}
{{- $_ := set $config "storage" (dict "postgres" (dict "postgres_db" $postgres)) -}}
{{- if eq .Values.runs.launcher "kubernetes" -}}
{{- $_ := set $config "run_launcher" (include "headrace.launcher" . | fromYaml) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.dagster) | toYaml -}}
{{- end -}}

{{/* The launcher of Dagster's package dagster-k8s: each run is a Job with the container of the code location. */}}
{{- define "headrace.launcher" -}}
module: dagster_k8s
class: K8sRunLauncher
config:
  service_account_name: {{ include "headrace.fullname" . }}-runs
  job_namespace: {{ .Release.Namespace }}
  job_image: {{ include "headrace.image" . }}
  image_pull_policy: {{ .Values.image.pullPolicy }}
  image_pull_secrets: {{ toJson .Values.image.pullSecrets }}
  instance_config_map: {{ include "headrace.fullname" . }}-dagster
  dagster_home: /var/lib/dagster
  labels:
    {{- include "headrace.selector" (dict "root" . "component" "run") | nindent 4 }}
  run_k8s_config:
    container_config:
      env:
        {{- include "headrace.workerEnv" . | nindent 8 }}
      volume_mounts:
        {{- include "headrace.workerMounts" . | nindent 8 }}
      resources: {{ toJson .Values.runs.resources }}
      security_context: {{ include "headrace.containerSecurity" . | fromYaml | toJson }}
      working_dir: /etc/headrace
    pod_template_spec_metadata:
      annotations: {{ toJson .Values.podAnnotations }}
      labels: {{ toJson .Values.podLabels }}
    pod_spec_config:
      automount_service_account_token: {{ eq (include "headrace.onKubernetes" .) "yes" }}
      enable_service_links: false
      security_context: {{ include "headrace.podSecurity" . | fromYaml | toJson }}
      # An epoch has 25 s to finish.
      termination_grace_period_seconds: 60
      volumes:
        {{- include "headrace.workerVolumes" . | nindent 8 }}
      node_selector: {{ toJson .Values.nodeSelector }}
      tolerations: {{ toJson .Values.tolerations }}
      affinity: {{ toJson .Values.affinity }}
    job_spec_config:
      ttl_seconds_after_finished: {{ int .Values.runs.ttlSecondsAfterFinished }}
      # The supervisor starts a stream again, not Kubernetes.
      backoff_limit: 0
{{- end -}}

{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where and how pods are scheduled. */}}
{{- define "headrace.scheduling" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* Of every process of Dagster. */}}
{{- define "headrace.dagsterEnv" -}}
- name: DAGSTER_HOME
  value: /var/lib/dagster
- name: DAGSTER_POSTGRES_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.storage.passwordSecret.name }}, key: {{ .Values.storage.passwordSecret.key }}}}
{{- end -}}

{{/* Of processes that run pipelines: the code location, and Jobs. */}}
{{- define "headrace.workerEnv" -}}
{{ include "headrace.dagsterEnv" . }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: HEADRACE_HOME
  value: /var/lib/headrace
- name: HEADRACE_PIPELINES
  value: /etc/headrace/pipelines
- name: HEADRACE_UI
  value: {{ ternary "1" "0" .Values.automation | quote }}
- name: HEADRACE__LOG_FORMAT
  value: json
- name: HEADRACE__STATE_BACKEND__BACKEND_TYPE
  value: postgres
- name: HEADRACE__STATE_BACKEND__POSTGRES__HOST
  value: {{ .Values.ledger.host | quote }}
- name: HEADRACE__STATE_BACKEND__POSTGRES__PORT
  value: {{ .Values.ledger.port | int | quote }}
- name: HEADRACE__STATE_BACKEND__POSTGRES__DB
  value: {{ .Values.ledger.database | quote }}
- name: HEADRACE__STATE_BACKEND__POSTGRES__USER
  value: {{ .Values.ledger.user | quote }}
- name: HEADRACE__STATE_BACKEND__POSTGRES__SSLMODE
  value: {{ .Values.ledger.sslmode | quote }}
- name: HEADRACE__STATE_BACKEND__POSTGRES__PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.ledger.passwordSecret.name }}, key: {{ .Values.ledger.passwordSecret.key }}}}
- name: HEADRACE__SPARK__MASTER
  value: {{ .Values.spark.master | quote }}
- name: HEADRACE__SPARK__DRIVER_MEMORY
  value: {{ .Values.spark.driverMemory | quote }}
- name: HEADRACE__SPARK__CONF
  value: {{ include "headrace.sparkConf" . | fromYaml | mustToRawJson | quote }}
{{- range .Values.secretEnv }}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
{{- end }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Kubernetes replaces $(POD_IP) and $(POD_NAME) in the value of a variable. */}}
{{- define "headrace.sparkConf" -}}
{{- $conf := dict -}}
{{- if include "headrace.onCluster" . -}}
{{- $conf = dict "spark.driver.host" "$(POD_IP)" "spark.driver.bindAddress" "0.0.0.0" -}}
{{- end -}}
{{- if include "headrace.onKubernetes" . -}}
{{- $executor := .Values.spark.executor -}}
{{- $conf = merge $conf (dict
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.container.image" (include "headrace.image" .)
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.executor.podTemplateFile" "/etc/headrace/executor/pod.yaml"
  "spark.executor.instances" ($executor.instances | int | toString)
  "spark.executor.cores" ($executor.cores | int | toString)
  "spark.executor.memory" $executor.memory) -}}
{{- end -}}
{{- mergeOverwrite $conf .Values.spark.conf | toYaml -}}
{{- end -}}

{{/* Folders of a process of Dagster. */}}
{{- define "headrace.dagsterMounts" -}}
- {name: dagster-home, mountPath: /var/lib/dagster}
- {name: dagster, mountPath: /var/lib/dagster/dagster.yaml, subPath: dagster.yaml, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "headrace.dagsterVolumes" -}}
- {name: dagster-home, emptyDir: {}}
- {name: dagster, configMap: {name: {{ include "headrace.fullname" . }}-dagster}}
- {name: tmp, emptyDir: {}}
{{- end -}}

{{- define "headrace.sharedMounts" -}}
- {name: home, mountPath: /var/lib/headrace}
{{- range $at, $file := .Values.secretFiles }}
- {name: secret-{{ $at }}, mountPath: {{ $file.path }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headrace.sharedVolumes" -}}
{{- if .Values.home.persistent }}
- {name: home, persistentVolumeClaim: {claimName: {{ default (printf "%s-home" (include "headrace.fullname" .)) .Values.home.existingClaim }}}}
{{- else }}
- {name: home, emptyDir: {}}
{{- end }}
{{- range $at, $file := .Values.secretFiles }}
- {name: secret-{{ $at }}, secret: {secretName: {{ $file.secret }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headrace.workerMounts" -}}
{{ include "headrace.dagsterMounts" . }}
- {name: headrace, mountPath: /etc/headrace/config.yaml, subPath: config.yaml, readOnly: true}
- {name: pipelines, mountPath: /etc/headrace/pipelines, readOnly: true}
{{- if include "headrace.onKubernetes" . }}
- {name: headrace, mountPath: /etc/headrace/executor/pod.yaml, subPath: pod.yaml, readOnly: true}
{{- end }}
{{ include "headrace.sharedMounts" . }}
{{- end -}}

{{- define "headrace.workerVolumes" -}}
{{ include "headrace.dagsterVolumes" . }}
- {name: headrace, configMap: {name: {{ include "headrace.fullname" . }}}}
- {name: pipelines, configMap: {name: {{ include "headrace.pipelinesConfigMap" . }}}}
{{- include "headrace.sharedVolumes" . }}
{{- end -}}

{{/* Pods start again if their configuration changes. */}}
{{- define "headrace.dagsterChecksum" -}}
checksum/dagster: {{ include "headrace.dagster" . | sha256sum }}
checksum/workspace: {{ toJson .Values.codeLocations | sha256sum }}
{{- end -}}

{{- define "headrace.workerChecksum" -}}
checksum/config: {{ toJson .Values.config | sha256sum }}
checksum/pipelines: {{ toJson .Values.pipelines | sha256sum }}
{{- end -}}
